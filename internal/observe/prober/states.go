package prober

import (
	"time"

	"berth/internal/pod"
)

// State is how one probe of a container stands.
type State struct {
	Container string
	Kind      string           // liveness, readiness or startup
	Last      pod.ProbeVerdict // the newest result; unknown before the first
	// InARow is how many results up to the newest were as that one, Needed how many make a verdict.
	InARow, Needed int
	// Next is when it is tried again; zero while it is not to be tried, or is under way.
	Next time.Time
}

// States returns how the probes of the pod stand, in the order of its containers.
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
				Last: p.last, InARow: p.inARow, Needed: p.needed(p.last),
			}
			if p.index != notInHeap {
				s.Next = p.due
			}
			out = append(out, s)
		}
	}
	return out
}
