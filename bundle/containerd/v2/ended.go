// Package v2 tells containers that have ended from those that never were. The build puts this file
// into containerd's package of the same name (core/runtime/v2), which calls it (bundle.mk).
package v2

import (
	"context"

	"github.com/containerd/containerd/v2/core/runtime"
)

// stated is a task that can be asked how it is.
type stated interface {
	State(ctx context.Context) (runtime.State, error)
}

// hasEnded reports whether a task ran and has ended. Containerd itself, when it is started again,
// takes a task without a process for one that was never created, and throws it away: of a container
// that ended while containerd was away it then says 255 and "Unknown" instead of how it ended.
func hasEnded(ctx context.Context, task stated) bool {
	s, err := task.State(ctx)
	return err == nil && s.Status == runtime.StoppedStatus
}
