package prober

import (
	"time"

	"berth/internal/pod"
)

// State is the state of one probe of a container.
type State struct {
	Container string
	Kind      string           // liveness, readiness or startup
	Last      pod.ProbeVerdict // of the newest attempt; unknown before the first
	// InARow is the number of consecutive equal results up to the newest, Needed the number that
	// changes the result.
	InARow, Needed int
	// Next is the time of the next attempt; zero if none is due, or one is running.
	Next time.Time
}

// States returns the states of the pod's probes, in the order of its containers.
func (m *Manager) States(uid pod.UID) []State {
	m.mu.Lock()
	defer m.mu.Unlock()
	pp := m.pods[uid]
	if pp == nil {
		return nil
	}
	var out []State
	for _, c := range pp.containers {
		for _, p := range c.probes {
			if p == nil {
				continue
			}
			s := State{
				Container: c.spec.Name, Kind: p.kind.String(),
				Last: p.last, InARow: p.inARow, Needed: p.thresholds.needed(p.last),
			}
			if p.index != notInHeap {
				s.Next = p.due
			}
			out = append(out, s)
		}
	}
	return out
}
