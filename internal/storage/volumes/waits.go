package volumes

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"berth/internal/pod"
)

// Wait is an operation that a pod's volume waits for, with its timeout.
type Wait struct {
	// From names the program that has not answered: "the NFS server files".
	From string
	// Call is the operation: "the mount of files:/export".
	Call string
	// Volume is the name of the volume in the pod's spec.
	Volume string
	// Since is the start of the wait, Until its timeout.
	Since, Until time.Time
}

// openWaits are the pending waits of all pods. It is safe for concurrent use.
type openWaits struct {
	mu      sync.Mutex
	pending map[*Wait]pod.UID // guarded by mu
}

// begin records a wait of the volume that times out after limit. The returned function removes the
// record.
func (w *openWaits) begin(v *volume, from, call string, limit time.Duration) (end func()) {
	now := time.Now()
	wait := &Wait{From: from, Call: call, Volume: v.spec.Name, Since: now, Until: now.Add(limit)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending == nil {
		w.pending = map[*Wait]pod.UID{}
	}
	w.pending[wait] = v.pod.UID
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.pending, wait)
	}
}

// Waits returns the pending waits of the pod's volumes, oldest first. Calls of CSI drivers are not
// included: the drivers report those.
func (m *Manager) Waits(uid pod.UID) []Wait {
	m.host.waits.mu.Lock()
	defer m.host.waits.mu.Unlock()
	var out []Wait
	for wait, of := range m.host.waits.pending {
		if of == uid {
			out = append(out, *wait)
		}
	}
	slices.SortFunc(out, func(a, b Wait) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Volume, b.Volume), cmp.Compare(a.Call, b.Call))
	})
	return out
}
