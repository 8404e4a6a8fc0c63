package agent

import (
	"context"

	"berth/internal/cluster/node"
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
func (a *Agent) followAddresses(ctx context.Context) error {
	return a.deps.hostIPs.Follow(ctx, func() {
		a.lifecycle.workers.WakeAll()
		a.node.node.Wake()
	})
}
