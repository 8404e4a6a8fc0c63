package agent

import (
	"context"
	"time"
)

// restAfter is how long nothing must have become of any pod until the agent is at rest.
const restAfter = 10 * time.Second

// followRest says each time that the agent comes to rest.
func (a *Agent) followRest(ctx context.Context) error {
	if a.cfg.AtRest == nil {
		return waitDone(ctx)
	}
	changed, cancel := a.status.Subscribe()
	defer cancel()
	quiet := time.NewTimer(restAfter)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed.Wake():
			changed.Take()
			quiet.Reset(restAfter)
		case <-quiet.C:
			a.cfg.AtRest()
		}
	}
}
