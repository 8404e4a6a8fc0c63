//go:build podshimpoints

package shims

import (
	"os"
	"syscall"
	"time"
)

func init() {
	if d, err := time.ParseDuration(os.Getenv("PODSHIM_REPLY_TIMEOUT")); err == nil {
		replyTimeout = d
	}
}

// crashPoint kills this process with SIGKILL at the crash point that a test selects.
func crashPoint(point string) {
	if os.Getenv("PODSHIM_POINT") == point {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// crashPointDirDeleted does so when containerd has deleted a task's directory, before it has
// persisted the container's exit.
func crashPointDirDeleted(bundle string) {
	if os.Getenv("PODSHIM_POINT") != "task-folder-gone" {
		return
	}
	go func() {
		for {
			if _, err := os.Lstat(bundle); err != nil {
				crashPoint("task-folder-gone")
			}
		}
	}()
}
