package agent

import (
	"context"
	"time"

	"berth/internal/observe/status"
)

// idleAfter is how long no pod status must change until the agent counts as idle.
const idleAfter = 10 * time.Second

// followIdle calls onIdle each time that the agent becomes idle; nil: no calls.
func followIdle(ctx context.Context, statuses *status.Manager, onIdle func()) error {
	if onIdle == nil {
		return waitDone(ctx)
	}
	changed, cancel := statuses.Subscribe()
	defer cancel()
	quiet := time.NewTimer(idleAfter)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed.Wake():
			changed.Take()
			quiet.Reset(idleAfter)
		case <-quiet.C:
			onIdle()
		}
	}
}
