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

// disks bind-mounts block devices and holds them with loop devices.
type disks struct {
	host  *host
	loops loopDriver
}

// loopDriver is loopDevices except in tests: only root can attach a loop device or create a device.
type loopDriver interface {
	// number returns the number of a block device, 0 if the file is none.
	number(path string, st *unix.Stat_t) uint64
	// hold holds the disk, unless it is held, and reports whether there was something to do.
	hold(disk *os.File) (fresh bool, err error)
	// free releases the disk at the path, which is without links: while a disk is held, the path
	// cannot be unmounted.
	free(path string) error
	// backedBy returns the loop devices that hold the disk at the path, which is without links.
	backedBy(path string) ([]string, error)
}

// find resolves the path and returns the block device and its number.
func (d *disks) find(path string) (device string, number uint64, err error) {
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
	if number = d.loops.number(device, &st); number == 0 {
		return "", 0, fmt.Errorf("path %q: only a block device can be used with volumeMode Block", path)
	}
	return device, number, nil
}

// published returns the number of the block device at a path below the agent's root, 0 if there
// is none.
func (d *disks) published(path string) (uint64, error) {
	st, err := d.host.files.Lstat(path)
	if err != nil {
		return 0, err
	}
	return d.loops.number(path, &st), nil
}

// bind bind-mounts the disk at the path and holds it, unless both are done, and reports whether
// there was something to do.
func (d *disks) bind(device string, number uint64, path string) (fresh bool, err error) {
	if err := d.host.files.Ensure(filepath.Dir(path), 0o750, 0o750); err != nil {
		return false, err
	}
	f, err := d.host.files.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o750)
	switch {
	case err == nil:
		err = f.Close()
	case errors.Is(err, fs.ErrExist):
		err = nil
	}
	if err != nil {
		return false, err
	}
	switch bound, err := d.published(path); {
	case err != nil:
		return false, err
	case bound == number:
		return d.hold(path)
	case bound != 0: // the persistent volume's path leads to another disk now
		if err := d.free(path); err != nil {
			return false, err
		}
		if err := d.host.mounter.Unmount(path); err != nil {
			return false, err
		}
	}
	if err := d.host.mounter.Mount(device, path, "", []string{"bind"}); err != nil {
		return false, fmt.Errorf("mount %s: %w", device, err)
	}
	if _, err := d.hold(path); err != nil {
		return false, err
	}
	return true, nil
}

// hold holds the disk at the path, unless it is held, and reports whether there was something
// to do.
func (d *disks) hold(path string) (fresh bool, err error) {
	disk, err := d.host.files.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return false, err
	}
	defer disk.Close()
	return d.loops.hold(disk)
}

// free releases the disk at the path.
func (d *disks) free(path string) error {
	real, err := d.host.files.Real(path)
	if err != nil {
		return err
	}
	return d.loops.free(real)
}

func (d *disks) unbind(volume, uid string) error {
	path := filepath.Join(volume, uid)
	number, err := d.published(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	if number != 0 {
		if err := d.free(path); err != nil {
			return err
		}
		if err := d.host.mounter.Unmount(path); err != nil {
			real, _ := d.host.files.Real(path)
			loops, _ := d.loops.backedBy(real) // loop devices in use stay until closed
			return heldBy(fmt.Errorf("unmount %s: %w", path, err), append(loops, path)...)
		}
	}
	if err := d.host.files.Unlink(path); err != nil {
		return err
	}
	if err := d.host.files.RemoveEmpty(volume); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}

// use returns the size of a disk; its content is not inspected.
func (d *disks) use(path string) (Use, error) {
	f, err := d.host.files.OpenFile(path, os.O_RDONLY, 0)
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
