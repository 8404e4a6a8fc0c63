// Package container has the end of a container known when the disk is full, too. The build puts this
// file into containerd's package of the same name (internal/cri/store/container), which calls it
// (bundle.mk). Containerd itself takes a container whose end it cannot write for running, so that its
// pod never ends, and with it the files that fill the disk.
package container

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// roomPause is between two tries to write the end of a container.
const roomPause = 10 * time.Second

// isKnown reports whether a status counts that could not be written: that of a container that has
// ended, for want of room alone. Then write is called in a while, which writes the status that the
// container has by then and comes here again if it cannot: a containerd that starts before that takes
// the exit code for unknown. Nothing is written for a container that was removed, as its folder is gone.
// What the write at path has left beside it is removed; nobody else writes there meanwhile.
func isKnown(path string, finishedAt int64, err error, write func() error) bool {
	if finishedAt == 0 || !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return false
	}
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".tmp-"+filepath.Base(path)+"*")) // the pattern is fine
	for _, file := range left {
		_ = os.Remove(file) // it goes with the container at the latest
	}
	time.AfterFunc(roomPause, func() { _ = write() }) // what fails for another reason fails for good
	return true
}
