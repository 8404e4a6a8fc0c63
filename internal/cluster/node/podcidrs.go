package node

import (
	"context"
	"log/slog"
	"slices"
	"time"
)

// podCIDRRetry is the delay after the runtime rejected the ranges.
const podCIDRRetry = 10 * time.Second

// PodCIDRs publishes the pod address ranges to the runtime. nil does nothing.
type PodCIDRs struct {
	current func() []string // empty while unknown
	publish func(ctx context.Context, cidrs []string) error
	changed chan struct{} // capacity 1: current may have changed
	log     *slog.Logger
}

// NewPodCIDRs returns PodCIDRs that publish the ranges of current, which is empty while they are
// unknown.
func NewPodCIDRs(current func() []string, publish func(ctx context.Context, cidrs []string) error, log *slog.Logger) *PodCIDRs {
	return &PodCIDRs{current: current, publish: publish, changed: make(chan struct{}, 1), log: log}
}

// Wake signals that the ranges may have changed. It never blocks.
func (c *PodCIDRs) Wake() {
	if c != nil {
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}
}

// Run publishes the ranges on each change until ctx is done, with retries. Withdrawn ranges stay in
// use: pods have addresses from them.
func (c *PodCIDRs) Run(ctx context.Context) error {
	var published []string
	complaint := ""
	for {
		var again <-chan time.Time
		if want := c.current(); len(want) > 0 && !slices.Equal(want, published) {
			err := c.publish(ctx, want)
			switch {
			case err == nil:
				c.log.Info("the container runtime knows the range of the pods' addresses", "podCIDRs", want, "before", published)
				published, complaint = slices.Clone(want), ""
			case ctx.Err() != nil:
				return ctx.Err()
			default:
				if err.Error() != complaint {
					complaint = err.Error()
					c.log.Warn("Failed to set the pod CIDR in the container runtime, will retry", "podCIDRs", want, "error", err)
				}
				again = time.After(podCIDRRetry)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.changed:
		case <-again:
		}
	}
}
