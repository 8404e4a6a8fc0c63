//go:build podshimpoints

package shims

import (
	"os"
	"syscall"
	"time"
)

func init() {
	if d, err := time.ParseDuration(os.Getenv("PODSHIM_PATIENCE")); err == nil {
		patience = d
	}
}

// at kills this process with SIGKILL at the crash point that a test selects.
func at(point string) {
	if os.Getenv("PODSHIM_POINT") == point {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// atFolderGone does so when containerd has deleted a task's directory, before it has persisted the
// container's exit.
func atFolderGone(bundle string) {
	if os.Getenv("PODSHIM_POINT") != "task-folder-gone" {
		return
	}
	go func() {
		for {
			if _, err := os.Lstat(bundle); err != nil {
				at("task-folder-gone")
			}
		}
	}()
}
