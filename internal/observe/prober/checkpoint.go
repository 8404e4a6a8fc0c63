package prober

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint"
	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

const (
	// checkpointVersion is the version of the file format.
	checkpointVersion = 2

	bootIDFile = "/proc/sys/kernel/random/boot_id"
)

// savedPod is the persisted state of one pod, by incarnation.
type savedPod map[pod.ContainerID]savedVerdicts

// savedVerdicts are the persisted results; liveness is not among them, since its failures soon
// recur.
type savedVerdicts struct {
	Readiness savedVerdict `json:"readiness,omitempty"`
	Startup   savedVerdict `json:"startup,omitempty"`
}

// savedVerdict is a result as text; an unknown one is empty.
type savedVerdict pod.ProbeVerdict

// MarshalText implements encoding.TextMarshaler.
func (v savedVerdict) MarshalText() ([]byte, error) { return []byte(pod.ProbeVerdict(v).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (v *savedVerdict) UnmarshalText(b []byte) error {
	for _, known := range []pod.ProbeVerdict{pod.ProbeUnknown, pod.ProbeSuccess, pod.ProbeFailure} {
		if known.String() == string(b) {
			*v = savedVerdict(known)
			return nil
		}
	}
	return fmt.Errorf("verdict %q is none of unknown, success and failure", b)
}

// newFile returns the checkpoint of the manager's results. They are valid for one boot of the
// machine: no container outlives it.
func (m *Manager) newFile() *checkpoint.WarmTable[pod.UID, savedPod] {
	return checkpoint.NewTable(checkpoint.TableConfig[pod.UID, savedPod]{
		Path: m.Path, Version: checkpointVersion, What: "verdicts of probes", Log: m.Log,
		Epoch: bootID, Changes: m.unsaved, All: m.allRecords, Get: m.record,
	})
}

// Load reads the results of the previous agent. It must be called once, before the first Sync. An
// unreadable file is set aside: the probes then start as for new containers.
func (m *Manager) Load() {
	saved, err := m.file.Load()
	if err != nil {
		m.Log.Warn(err.Error())
		return
	}
	if len(saved) == 0 {
		return
	}
	m.mu.Lock()
	m.restored = saved
	m.mu.Unlock()
}

// Write writes the current results, and waits until that was tried.
func (m *Manager) Write(ctx context.Context) { m.file.Writer.Flush(ctx) }

// Health returns why and since when the file cannot be written, or nil.
func (m *Manager) Health() error { return m.file.Writer.Health() }

// bootID identifies the boot of the machine; "" if the kernel does not report it, so that all boots
// count as one.
func bootID() string {
	b, err := os.ReadFile(bootIDFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// allRecords returns the results of all incarnations, including restored ones that were not seen
// yet.
func (m *Manager) allRecords() map[pod.UID]savedPod {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[pod.UID]savedPod, len(m.pods)+len(m.restored))
	maps.Copy(out, m.restored) // its elements are never modified
	for uid, pp := range m.pods {
		if s := pp.record(); len(s) > 0 {
			out[uid] = s
		}
	}
	return out
}

// record returns the results to persist for a pod, if any.
func (m *Manager) record(uid pod.UID) (savedPod, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if pp := m.pods[uid]; pp != nil {
		if s := pp.record(); len(s) > 0 {
			return s, true
		}
	}
	s, ok := m.restored[uid]
	return s, ok
}

func (pp *podProbes) record() savedPod {
	s := savedPod{}
	for _, c := range pp.containers {
		var v savedVerdicts
		if p := c.probes[readiness]; p != nil {
			v.Readiness = savedVerdict(p.verdict)
		}
		if p := c.probes[startup]; p != nil {
			v.Startup = savedVerdict(p.verdict)
		}
		if c.id != "" && v != (savedVerdicts{}) {
			s[c.id] = v
		}
	}
	return s
}

// knownOf returns an earlier agent's results for the incarnation: from the file, else from the
// reported status.
//
// The reported readiness is the container's own, where the kubelet uses the pod's condition, and
// only for containers that have run for 10 s: another container's failure, or a new incarnation
// that was never reported, does not distort it.
func (m *Manager) knownOf(c *container, cs *pod.ContainerStatus, saved savedPod) (known [kinds]pod.ProbeVerdict) {
	if s, ok := saved[cs.ID]; ok {
		known[readiness], known[startup] = pod.ProbeVerdict(s.Readiness), pod.ProbeVerdict(s.Startup)
		return known
	}
	if cs.StartedAt.IsZero() || !cs.StartedAt.Before(m.began) {
		return known
	}
	r := reported(c.pod.pod, c.spec.Name, cs.ID)
	if r != nil && r.Ready {
		known[readiness] = pod.ProbeSuccess
	}
	if r != nil && r.Started != nil && *r.Started {
		known[startup] = pod.ProbeSuccess
	}
	return known
}

// reported returns the incarnation's status in the pod, or nil.
func reported(p *v1.Pod, name string, id pod.ContainerID) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		if s := lifecycle.FindStatus(list, name); s != nil {
			if _, of, _ := strings.Cut(s.ContainerID, "://"); of == string(id) {
				return s
			}
		}
	}
	return nil
}
