// Package v2 has the runtime keep a shim whose container has exited until the exit code is read. The build
// puts this file into containerd's package of the same name (core/runtime/v2), which calls it (bundle.mk).
// Containerd itself ends a shim without processes when it starts, and then reports the container that
// exited meanwhile with code 255.
package v2

import (
	"context"

	"github.com/containerd/containerd/v2/core/runtime"
)

// exited reports whether the shim holds the exit code of its container. A shim that does not answer, or
// that has no container, does not.
func exited(ctx context.Context, shim interface {
	State(context.Context) (runtime.State, error)
},
) bool {
	s, err := shim.State(ctx)
	return err == nil && s.Status == runtime.StoppedStatus
}
