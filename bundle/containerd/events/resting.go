// Package events makes the runtime check for events to retry only while there are some. The build
// puts this file into containerd's package of the same name (internal/cri/server/events), which
// calls it (bundle/patches). Upstream containerd checks each second, for sandboxes and for
// containers, which is most of its work when idle.
package events

import "time"

// resting is a ticker that ticks only while items wait. Its methods must be called with the lock
// that guards these items.
type resting struct {
	*time.Ticker
	period time.Duration
}

// newResting returns a ticker that ticks until no item waits.
func newResting(period time.Duration) *resting {
	return &resting{time.NewTicker(period), period}
}

// more reports that another item will wait; waiting is the count before. The first item starts the
// ticker.
func (r *resting) more(waiting int) {
	if waiting == 0 {
		r.Reset(r.period)
	}
}

// left reports the count of waiting items at a tick. With none, it stops the ticker.
func (r *resting) left(waiting int) {
	if waiting == 0 {
		r.Stop()
	}
}
