package agent

import (
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/crispec"
)

const (
	// execString is how many pages the kernel takes of one argument or variable (MAX_ARG_STRLEN).
	execString = 32
	// execLeast and execMost are between what, in bytes, a quarter of the limit of the stack counts for all of them.
	execLeast, execMost = 128 << 10, 6 << 20
)

// execLimits returns what the kernel takes of the arguments and variables of a container. The runtime inside, and with it all containers, has the limit
// of the stack of this process; what another runtime has is not known.
func (a *Agent) execLimits() crispec.ExecLimits {
	limits := crispec.ExecLimits{String: execString * os.Getpagesize(), Total: execMost}
	var stack unix.Rlimit
	if a.embedded != nil && unix.Getrlimit(unix.RLIMIT_STACK, &stack) == nil {
		limits.Total = int(max(execLeast, min(stack.Cur/4, execMost)))
	}
	return limits
}
