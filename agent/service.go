package agent

import (
	"context"
	"fmt"

	"berth/internal/host/systemd"
)

// newService creates the systemd notifier. The agent counts as alive while its sync loop makes
// iterations: a restart would not repair an unavailable runtime or API server.
func newService(g *dependencies, ping func(context.Context) error) *systemd.Notifier {
	changed, _ := g.stores.status.Subscribe() // for the agent's lifetime
	return systemd.New(systemd.Config{
		Service: g.cfg.Service, Alive: ping, Changed: changed.Wake(), Log: g.cfg.Log,
		Status: func() string {
			changed.Take()
			pods, ready := g.stores.status.Count()
			return fmt.Sprintf("%d of %d pods are ready", ready, pods)
		},
	})
}
