// Package container makes containerd record a container's exit even if the disk is full. The build
// puts this file into containerd's package of the same name (internal/cri/store/container), which
// calls it (bundle/patches). Upstream containerd treats a container whose exit it cannot write as
// running, so that its pod never terminates, and the files that fill the disk are not removed.
package container

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// roomPause is the delay between two tries to write a container's exit.
const roomPause = 10 * time.Second

// isKnown reports whether a status counts although it could not be written: only that of an exited
// container, if the disk is full. It then schedules a call of write, which writes the container's
// status at that time and calls isKnown again if it fails. If containerd restarts before that, the
// exit code is unknown. Nothing is written for a removed container, whose directory does not exist.
// The temporary files of the failed write at path are removed; there is no concurrent write.
func isKnown(path string, finishedAt int64, err error, write func() error) bool {
	if finishedAt == 0 || !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return false
	}
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".tmp-"+filepath.Base(path)+"*")) // the pattern is valid
	for _, file := range left {
		_ = os.Remove(file) // else it is removed with the container
	}
	time.AfterFunc(roomPause, func() { _ = write() }) // other errors are permanent
	return true
}
