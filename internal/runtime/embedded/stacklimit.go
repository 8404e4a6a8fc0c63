package embedded

import "golang.org/x/sys/unix"

// StackLimit returns the limit in bytes of the stack of this process, 0 if it is not known. The
// runtime, and with it all containers, has the same.
func StackLimit() uint64 {
	var stack unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_STACK, &stack); err != nil {
		return 0
	}
	return stack.Cur
}
