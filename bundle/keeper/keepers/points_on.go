//go:build keeperpoints

package keepers

import (
	"os"
	"syscall"
	"time"
)

func init() {
	if d, err := time.ParseDuration(os.Getenv("KEEPER_PATIENCE")); err == nil {
		patience = d
	}
}

// at ends this process as SIGKILL from outside would, at the point that a test names.
func at(point string) {
	if os.Getenv("KEEPER_POINT") == point {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// atFolderGone does so as soon as containerd has deleted the folder of a task: before it has written
// down how the container ended.
func atFolderGone(bundle string) {
	if os.Getenv("KEEPER_POINT") != "task-folder-gone" {
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
