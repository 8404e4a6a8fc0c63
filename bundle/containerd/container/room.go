// Package container has the end of a container known when the disk is full, too. The build puts this
// file into containerd's package of the same name (internal/cri/store/container), which calls it
// (bundle.mk). Containerd itself takes a container whose end it cannot write for running, so that its
// pod never ends, and with it the files that fill the disk.
package container

import (
	"errors"

	"golang.org/x/sys/unix"
)

// isKnown reports whether a status counts that could not be written: that of a container that has
// ended, for want of room alone. It is not written later: a containerd that is started afterwards
// takes its exit code for unknown.
func isKnown(finishedAt int64, err error) bool {
	return finishedAt != 0 && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT))
}
