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

// podCIDRRetry is the pause after the runtime did not take the ranges.
const podCIDRRetry = 10 * time.Second

// podCIDRs tells the runtime the ranges of the pods' addresses. nil: nobody is told.
type podCIDRs struct {
	current func() []string // none while they are not known
	publish func(ctx context.Context, cidrs []string) error
	changed chan struct{} // capacity 1: current may have changed
	log     *slog.Logger
}

// newPodCIDRs returns what tells the runtime of the Node's ranges or, without an API server, of the
// configuration's. The runtime inside knows the latter from its start.
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

// splitCIDRs reads ranges with commas between them; "" has none.
func splitCIDRs(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// Wake says that the ranges may have changed. It never blocks.
func (c *podCIDRs) Wake() {
	if c != nil {
		wake(c.changed)
	}
}

// Run tells the runtime the ranges each time that they are others, until ctx is done. What it does
// not take it is told again. Ranges that are taken back stay: pods have addresses of them.
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
