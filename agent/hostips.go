package agent

import (
	"context"

	"berth/internal/cluster/node"
)

// addressSettings are those by which the addresses of the Node are found, nil where there is no
// Node.
func addressSettings(cfg Config) *node.Settings {
	k := cfg.Kubelet
	if k == nil {
		return nil
	}
	return &node.Settings{Name: cfg.NodeName, NodeIPs: k.NodeIPs, ExternalCloudProvider: k.CloudProvider == "external"}
}

// followAddresses has pods and Node show the node's addresses when they change.
func (a *Agent) followAddresses(ctx context.Context) error {
	return a.hostIPs.Follow(ctx, func() {
		a.workers.WakeAll()
		a.node.Wake()
	})
}
