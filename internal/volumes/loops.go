package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// detachLoops takes away the loop devices with which the kubelet holds a disk that it shows at the path: while there is one, the path cannot be
// unmounted. root is "/".
func detachLoops(root, path string) error {
	names := map[string]bool{path: true}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		names[filepath.Join(dir, filepath.Base(path))] = true
	}
	files, err := filepath.Glob(filepath.Join(root, "sys/block/loop*/loop/backing_file"))
	if err != nil {
		return err
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil || !names[strings.TrimSuffix(strings.TrimSpace(string(b)), " (deleted)")] {
			continue // detached meanwhile, or somebody else's
		}
		loop := filepath.Join(root, "dev", filepath.Base(filepath.Dir(filepath.Dir(file))))
		if err := detachLoop(loop); err != nil {
			return fmt.Errorf("detach %s from %s: %w", loop, path, err)
		}
	}
	return nil
}

func detachLoop(device string) error {
	fd, err := unix.Open(device, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: device, Err: err}
	}
	defer unix.Close(fd)
	if err := unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return err
	}
	return nil
}
