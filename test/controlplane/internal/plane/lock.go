package plane

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// How long flock waits for the lock.
const (
	lockNow  = syscall.LOCK_EX | syscall.LOCK_NB
	lockWait = syscall.LOCK_EX
)

// errLocked is that of flock when another has the lock.
var errLocked = syscall.EWOULDBLOCK

// flock locks an open file until it is closed.
func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		return nil
	}
}
