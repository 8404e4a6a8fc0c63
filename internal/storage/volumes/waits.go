package volumes

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"berth/internal/pod"
)

// Wait is what a volume of a pod waits for, and until when.
type Wait struct {
	// From is the program that has not answered, in words: "the NFS server files".
	From string
	// Call is what it was asked for: "the mount of files:/export".
	Call string
	// Volume is the pod's name of the volume.
	Volume string
	// Since is when the wait began, Until when it times out.
	Since, Until time.Time
}

// openWaits are those of all pods. It is safe for concurrent use.
type openWaits struct {
	mu       sync.Mutex
	underWay map[*Wait]pod.UID // guarded by mu
}

// begin records a wait of the volume that times out after limit. The returned function ends the
// record.
func (w *openWaits) begin(v *volume, from, call string, limit time.Duration) (end func()) {
	now := time.Now()
	begun := &Wait{From: from, Call: call, Volume: v.spec.Name, Since: now, Until: now.Add(limit)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.underWay == nil {
		w.underWay = map[*Wait]pod.UID{}
	}
	w.underWay[begun] = v.pod.UID
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.underWay, begun)
	}
}

// Waits returns what volumes of the pod wait for, the oldest wait first. Calls of CSI drivers are
// left out: the drivers report those.
func (m *Manager) Waits(uid pod.UID) []Wait {
	m.waits.mu.Lock()
	defer m.waits.mu.Unlock()
	var out []Wait
	for begun, of := range m.waits.underWay {
		if of == uid {
			out = append(out, *begun)
		}
	}
	slices.SortFunc(out, func(a, b Wait) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Volume, b.Volume), cmp.Compare(a.Call, b.Call))
	})
	return out
}
