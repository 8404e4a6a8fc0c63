package agent

import (
	"context"
	"strings"

	"berth/internal/cluster/node"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/embedded"
)

// newPodCIDRs returns the publisher of the Node's ranges or, without an API server, the configured
// ones. The embedded runtime starts with the latter.
func newPodCIDRs(b *base, rt *containerRuntime, n nodeSource) *node.PodCIDRs {
	var current func() []string
	switch {
	case b.settings.mode == memberMode:
		current = func() []string {
			object, _ := n.Current()
			if object == nil {
				return nil
			}
			if len(object.Spec.PodCIDRs) == 0 {
				return splitCIDRs(object.Spec.PodCIDR)
			}
			return object.Spec.PodCIDRs
		}
	case rt.embedded == nil && b.cfg.PodCIDR != "":
		current = func() []string { return splitCIDRs(b.cfg.PodCIDR) }
	default:
		return nil
	}
	return node.NewPodCIDRs(current, publishPodCIDRs(rt.cri, rt.embedded), b.cfg.Log)
}

func publishPodCIDRs(client *cri.Client, inside *embedded.Runtime) func(context.Context, []string) error {
	if inside != nil {
		return inside.Network.SetCIDRs
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
