package csi

import (
	"cmp"
	"path"
	"slices"
	"sync"
	"time"

	"berth/internal/pod"
)

// Wait is a call for a pod that a driver has not answered.
type Wait struct {
	Driver string
	// Call is the name of the call, such as "NodeStageVolume".
	Call string
	// Volume is the driver's own name of the volume, "" for a call about none.
	Volume string
	// Since is when the call was made, Until when its answer is given up.
	Since, Until time.Time
}

// waits are the calls for pods that are under way. It is safe for concurrent use.
type waits struct {
	mu       sync.Mutex
	underWay map[*Wait]pod.UID // guarded by mu
}

// begin records a call. The returned function ends the record.
func (w *waits) begin(uid pod.UID, driver, method, volume string) (end func()) {
	now := time.Now()
	made := &Wait{Driver: driver, Call: path.Base(method), Volume: volume, Since: now, Until: now.Add(callTimeout)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.underWay[made] = uid
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.underWay, made)
	}
}

// Waits returns the calls for a pod that drivers have not answered, the oldest first.
func (d *Drivers) Waits(uid pod.UID) []Wait {
	d.waits.mu.Lock()
	defer d.waits.mu.Unlock()
	var out []Wait
	for made, of := range d.waits.underWay {
		if of == uid {
			out = append(out, *made)
		}
	}
	slices.SortFunc(out, func(a, b Wait) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Driver, b.Driver), cmp.Compare(a.Call, b.Call), cmp.Compare(a.Volume, b.Volume))
	})
	return out
}
