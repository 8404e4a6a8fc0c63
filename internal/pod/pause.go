package pod

import (
	"context"
	"time"
)

// Pause waits for d. It returns false if ctx is done first.
func Pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
