package agent

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"berth/internal/runtime/cri"
	"berth/internal/runtime/embedded"
)

// podCIDRRetry is the delay after the runtime rejected the ranges.
const podCIDRRetry = 10 * time.Second

// podCIDRs publishes the pod address ranges to the runtime. nil does nothing.
type podCIDRs struct {
	current func() []string // empty while unknown
	publish func(ctx context.Context, cidrs []string) error
	changed chan struct{} // capacity 1: current may have changed
	log     *slog.Logger
}

// newPodCIDRs returns the publisher of the Node's ranges or, without an API server, the configured
// ones. The embedded runtime starts with the latter.
func newPodCIDRs(b *base, rt *containerRuntime, n nodeSource) *podCIDRs {
	c := &podCIDRs{changed: make(chan struct{}, 1), log: b.cfg.Log, publish: publishPodCIDRs(rt.cri, rt.embedded)}
	switch {
	case b.settings.mode == memberMode:
		c.current = func() []string {
			node, _ := n.Current()
			if node == nil {
				return nil
			}
			if len(node.Spec.PodCIDRs) == 0 {
				return splitCIDRs(node.Spec.PodCIDR)
			}
			return node.Spec.PodCIDRs
		}
	case rt.embedded == nil && b.cfg.PodCIDR != "":
		c.current = func() []string { return splitCIDRs(b.cfg.PodCIDR) }
	default:
		return nil
	}
	return c
}

func publishPodCIDRs(client *cri.Client, inside *embedded.Runtime) func(context.Context, []string) error {
	if inside != nil {
		return inside.SetPodCIDRs
	}
	return func(ctx context.Context, cidrs []string) error {
		return client.UpdatePodCIDR(ctx, strings.Join(cidrs, ","))
	}
}

// splitCIDRs splits comma-separated ranges; "" has none.
func splitCIDRs(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// Wake signals that the ranges may have changed. It never blocks.
func (c *podCIDRs) Wake() {
	if c != nil {
		wake(c.changed)
	}
}

// Run publishes the ranges on each change until ctx is done, with retries. Withdrawn ranges stay in
// use: pods have addresses from them.
func (c *podCIDRs) Run(ctx context.Context) error {
	var told []string
	complaint := ""
	for {
		var again <-chan time.Time
		if want := c.current(); len(want) > 0 && !slices.Equal(want, told) {
			err := c.publish(ctx, want)
			switch {
			case err == nil:
				c.log.Info("the container runtime knows the range of the pods' addresses", "podCIDRs", want, "before", told)
				told, complaint = slices.Clone(want), ""
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
