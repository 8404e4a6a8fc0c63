package agent

import (
	"context"
	"fmt"

	"berth/internal/host/systemd"
)

// newService returns what tells systemd how the agent is. The agent is alive while its loop comes
// by: another one would not mend a runtime or an API server that is away.
func newService(g *ground, ping func(context.Context) error) *systemd.Notifier {
	changed, _ := g.status.Subscribe() // as long as the agent lives
	return systemd.New(systemd.Config{
		Service: g.cfg.Service, Alive: ping, Changed: changed.Wake(), Log: g.cfg.Log,
		Status: func() string {
			changed.Take()
			pods, ready := g.status.Count()
			return fmt.Sprintf("%d of %d pods are ready", ready, pods)
		},
	})
}
