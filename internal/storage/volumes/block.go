package volumes

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// devicesDir is the directory of block devices in each pod's directory and, by volume and pod, in
// that of each volume plugin.
const devicesDir = "volumeDevices"

// disks bind-mounts block devices and holds them with loop devices. The functions are those of
// loops.go except in tests: only root can attach a loop device or create a device.
type disks struct {
	*host
	numberOf func(path string, st *unix.Stat_t) uint64
	holdDisk func(disk *os.File) (fresh bool, err error)
	freeDisk func(path string) error
}

func newDisks(h *host) *disks {
	return &disks{
		host:     h,
		numberOf: numberOf,
		holdDisk: func(disk *os.File) (bool, error) { return holdDisk("/", disk) },
		freeDisk: func(path string) error {
			real, err := h.files.Real(path)
			if err != nil {
				return err
			}
			return freeDisk("/", real)
		},
	}
}

// findDisk resolves the path and returns the block device and its number.
func (d *disks) findDisk(path string) (device string, number uint64, err error) {
	device, err = filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", 0, fmt.Errorf("path %q does not exist: %w", path, err)
	}
	if err != nil {
		return "", 0, err
	}
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return "", 0, &fs.PathError{Op: "stat", Path: device, Err: err}
	}
	if number = d.numberOf(device, &st); number == 0 {
		return "", 0, fmt.Errorf("path %q: only a block device can be used with volumeMode Block", path)
	}
	return device, number, nil
}

// numberOf returns the number of a block device, 0 if the file is none.
func numberOf(_ string, st *unix.Stat_t) uint64 {
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0
	}
	return st.Rdev
}

// publishedDisk returns the number of the block device at a path below the agent's root, 0 if there
// is none.
func (d *disks) publishedDisk(path string) (uint64, error) {
	st, err := d.files.Lstat(path)
	if err != nil {
		return 0, err
	}
	return d.numberOf(path, &st), nil
}

// bindDisk bind-mounts the disk at the path and holds it, unless both are done, and reports whether
// there was something to do.
func (d *disks) bindDisk(device string, number uint64, path string) (fresh bool, err error) {
	if err := d.files.Ensure(filepath.Dir(path), 0o750, 0o750); err != nil {
		return false, err
	}
	f, err := d.files.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o750)
	switch {
	case err == nil:
		err = f.Close()
	case errors.Is(err, fs.ErrExist):
		err = nil
	}
	if err != nil {
		return false, err
	}
	switch shown, err := d.publishedDisk(path); {
	case err != nil:
		return false, err
	case shown == number:
		return d.holdShown(path)
	case shown != 0: // the persistent volume's path leads to another disk now
		if err := d.freeDisk(path); err != nil {
			return false, err
		}
		if err := d.mounter.Unmount(path); err != nil {
			return false, err
		}
	}
	if err := d.mounter.Mount(device, path, "", []string{"bind"}); err != nil {
		return false, fmt.Errorf("mount %s: %w", device, err)
	}
	if _, err := d.holdShown(path); err != nil {
		return false, err
	}
	return true, nil
}

// holdShown holds the disk at the path, unless it is held, and reports whether there was something
// to do.
func (d *disks) holdShown(path string) (fresh bool, err error) {
	disk, err := d.files.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return false, err
	}
	defer disk.Close()
	return d.holdDisk(disk)
}

func (d *disks) unbindDisk(volume, uid string) error {
	path := filepath.Join(volume, uid)
	number, err := d.publishedDisk(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	if number != 0 {
		if err := d.freeDisk(path); err != nil {
			return err
		}
		if err := d.mounter.Unmount(path); err != nil {
			real, _ := d.files.Real(path)
			loops, _ := loopsOf("/", real) // loop devices in use stay until closed
			return heldBy(fmt.Errorf("unmount %s: %w", path, err), append(loops, path)...)
		}
	}
	if err := d.files.Unlink(path); err != nil {
		return err
	}
	if err := d.files.RemoveEmpty(volume); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}

// useDisk returns the size of a disk; its content is not inspected.
func (d *disks) useDisk(path string) (Use, error) {
	f, err := d.files.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return Use{}, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return Use{}, fmt.Errorf("size of %s: %w", path, err)
	}
	return Use{Capacity: uint64(size), Source: "block"}, nil
}
