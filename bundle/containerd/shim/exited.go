// Package v2 makes the runtime preserve a shim whose container has exited until the exit code is
// read. The build puts this file into containerd's package of the same name (core/runtime/v2),
// which calls it (bundle/patches). Upstream containerd stops a shim without processes at its start,
// and then reports the container that has exited meanwhile with code 255.
package v2

import (
	"context"

	"github.com/containerd/containerd/v2/core/runtime"
)

// exited reports whether the shim holds the exit code of its container. It returns false if the
// shim does not respond or has no container.
func exited(ctx context.Context, shim interface {
	State(context.Context) (runtime.State, error)
},
) bool {
	s, err := shim.State(ctx)
	return err == nil && s.Status == runtime.StoppedStatus
}
