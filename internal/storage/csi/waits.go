package csi

import (
	"cmp"
	"path"
	"slices"
	"sync"
	"time"

	"berth/internal/pod"
)

// Wait is a call on behalf of a pod that a driver has not answered.
type Wait struct {
	Driver string
	// Call is the name of the call, such as "NodeStageVolume".
	Call string
	// Volume is the driver's volume handle, "" if the call is not about a volume.
	Volume string
	// Since is the start of the call, Until its timeout.
	Since, Until time.Time
}

// waits are the pending calls on behalf of pods. It is safe for concurrent use.
type waits struct {
	mu      sync.Mutex
	pending map[*Wait]pod.UID // guarded by mu
}

// begin records a call. The returned function removes the record.
func (w *waits) begin(uid pod.UID, driver, method, volume string) (end func()) {
	now := time.Now()
	wait := &Wait{Driver: driver, Call: path.Base(method), Volume: volume, Since: now, Until: now.Add(callTimeout)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending[wait] = uid
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.pending, wait)
	}
}

// Waits returns the pending calls on behalf of a pod, oldest first.
func (d *Drivers) Waits(uid pod.UID) []Wait {
	d.waits.mu.Lock()
	defer d.waits.mu.Unlock()
	var out []Wait
	for wait, of := range d.waits.pending {
		if of == uid {
			out = append(out, *wait)
		}
	}
	slices.SortFunc(out, func(a, b Wait) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Driver, b.Driver), cmp.Compare(a.Call, b.Call), cmp.Compare(a.Volume, b.Volume))
	})
	return out
}
