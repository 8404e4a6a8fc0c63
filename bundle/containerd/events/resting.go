// Package events has the runtime look for events to try again only while there are some. The build puts
// this file into containerd's package of the same name (internal/cri/server/events), which calls it
// (bundle.mk). Containerd itself looks each second, for sandboxes and for containers, which is most of
// what it does at rest.
package events

import "time"

// resting is a ticker that ticks only while something waits. Its user has what waits under a lock, and
// holds that for each call.
type resting struct {
	*time.Ticker
	period time.Duration
}

// newResting returns a ticker that ticks until it hears that nothing waits.
func newResting(period time.Duration) *resting {
	return &resting{time.NewTicker(period), period}
}

// more is told that one more will wait, and how many do so far. The first has the ticker tick.
func (r *resting) more(waiting int) {
	if waiting == 0 {
		r.Reset(r.period)
	}
}

// left is told, at a tick, how many wait. Without any the ticker rests.
func (r *resting) left(waiting int) {
	if waiting == 0 {
		r.Stop()
	}
}
