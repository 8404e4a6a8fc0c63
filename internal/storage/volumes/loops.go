package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/host/safepath"
)

// loopDevices identifies block devices, and holds them with loop devices. It is the root directory
// of this machine.
//
// Disks of pods are held open by unused loop devices: the kernel then does not reuse the device
// number, not even if the disk is pulled out while no agent runs. The kubelet does the same, and
// each finds the other's loop devices.
type loopDevices string

func (loopDevices) number(_ string, st *unix.Stat_t) uint64 {
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0
	}
	return st.Rdev
}

func (l loopDevices) hold(disk *os.File) (fresh bool, err error) {
	path, err := os.Readlink(safepath.Self(int(disk.Fd())))
	if err != nil {
		return false, err
	}
	held, err := l.backedBy(path)
	if err != nil || len(held) > 0 {
		return false, err
	}
	if err := l.attach(int(disk.Fd())); err != nil {
		return false, fmt.Errorf("hold %s with a loop device, for which the kernel's loop driver is needed: %w", disk.Name(), err)
	}
	return true, nil
}

func (l loopDevices) free(path string) error {
	loops, err := l.backedBy(path)
	if err != nil {
		return err
	}
	for _, loop := range loops {
		if err := detachLoop(loop); err != nil {
			return fmt.Errorf("detach %s from %s: %w", loop, path, err)
		}
	}
	return nil
}

// backedBy returns the loop devices that are backed by the path, which is without links.
func (l loopDevices) backedBy(path string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(string(l), "sys/block/loop*/loop/backing_file"))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil || path != strings.TrimSuffix(strings.TrimSpace(string(b)), " (deleted)") {
			continue // detached meanwhile, or of another file
		}
		out = append(out, filepath.Join(string(l), "dev", filepath.Base(filepath.Dir(filepath.Dir(file)))))
	}
	return out, nil
}

// loopTries is the number of attempts to attach a free loop device, as other processes may attach
// it first.
const loopTries = 16

// attach attaches a read-only loop device to a disk. It survives the process.
func (l loopDevices) attach(disk int) error {
	control, err := openDevice(filepath.Join(string(l), "dev/loop-control"), unix.O_RDWR)
	if err != nil {
		return err
	}
	defer unix.Close(control)
	for try := 1; ; try++ {
		free, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return fmt.Errorf("find a free loop device: %w", err)
		}
		device := filepath.Join(string(l), "dev", fmt.Sprintf("loop%d", free))
		loop, err := openDevice(device, unix.O_RDWR)
		if err != nil {
			return err
		}
		err = unix.IoctlSetInt(loop, unix.LOOP_SET_FD, disk)
		unix.Close(loop)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EBUSY) || try == loopTries:
			return fmt.Errorf("attach %s: %w", device, err)
		}
	}
}

func detachLoop(device string) error {
	fd, err := openDevice(device, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return err
	}
	return nil
}

func openDevice(path string, flags int) (fd int, err error) {
	if fd, err = unix.Open(path, flags|unix.O_CLOEXEC, 0); err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}
