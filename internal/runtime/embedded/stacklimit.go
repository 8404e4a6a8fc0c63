package embedded

import "golang.org/x/sys/unix"

// StackLimit returns the stack size limit of this process in bytes, 0 if unknown. The runtime and
// all containers inherit it.
func StackLimit() uint64 {
	var stack unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_STACK, &stack); err != nil {
		return 0
	}
	return stack.Cur
}
