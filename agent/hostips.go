package agent

import (
	"context"

	"berth/internal/cluster/node"
	"berth/internal/sync/podworkers"
)

// addressSettings returns the settings for finding the Node's addresses, nil without a Node.
func addressSettings(cfg Config) *node.Settings {
	k := cfg.Kubelet
	if k == nil {
		return nil
	}
	return &node.Settings{Name: cfg.NodeName, NodeIPs: k.NodeIPs, ExternalCloudProvider: k.CloudProvider == "external"}
}

// followAddresses updates pods and Node when the node's addresses change.
func followAddresses(g *dependencies, workers *podworkers.PodWorkers, n nodeSource) func(context.Context) error {
	return func(ctx context.Context) error {
		return g.hostIPs.Follow(ctx, func() {
			workers.WakeAll()
			n.Wake()
		})
	}
}
