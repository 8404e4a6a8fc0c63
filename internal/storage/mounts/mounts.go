// Package mounts mounts filesystems in directories that containers may change, and unmounts them.
//
// Owns: the part of mount(8) that the agent needs: the directory of a mount, which is identified by
// a descriptor (package safepath), and timeouts for servers.
// Reads: the mount table, through k8s.io/mount-utils.
// Never: follows a link to mount or unmount, or passes an option to a shell.
package mounts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"

	"berth/internal/host/safepath"
)

// Mounter mounts in the directories of pods and plugins. Paths are absolute; a link in one, below
// the directory of all pods or plugins, is an error.
type Mounter struct {
	mount.Interface // reads the mount table
	files           safepath.Root
	// passage is the directory in which mount(8) mounts filesystems that are then moved to their
	// targets.
	passage string
}

// New returns a Mounter for the agent with these directories. It accesses no file.
func New(rootDir, runDir string) *Mounter {
	return &Mounter{Interface: mount.New(""), files: safepath.Root(filepath.Clean(rootDir)), passage: filepath.Join(runDir, "mounts")}
}

// Mount mounts the source at the target with the options of mount(8). The target must be an
// existing directory, or a file for the bind mount of a file.
func (m *Mounter) Mount(source, target, fsType string, options []string) error {
	return m.MountSensitive(source, target, fsType, options, nil)
}

// MountSensitiveWithoutSystemd is MountSensitive.
func (m *Mounter) MountSensitiveWithoutSystemd(source, target, fsType string, options, sensitive []string) error {
	return m.MountSensitive(source, target, fsType, options, sensitive)
}

// MountSensitive is Mount with options that do not appear in errors. Errors do not name the source,
// which the caller knows.
func (m *Mounter) MountSensitive(source, target, fsType string, options, sensitive []string) error {
	all := slices.Concat(options, sensitive)
	o := parseOptions(all)
	tree, err := openTree(source, fsType, o)
	if errors.Is(err, unix.ENODEV) && o.bind == 0 { // mount(8) may have a helper for it
		return m.MountRemote(context.Background(), source, target, fsType, all)
	}
	if err == nil {
		defer unix.Close(tree)
		err = m.attach(tree, target, o)
	}
	if err != nil {
		return fmt.Errorf("%s at %s with options %v: %w", cmp.Or(fsType, "bind"), target, options, err)
	}
	return nil
}

// openTree returns a descriptor of a detached mount: a bind mount or another filesystem.
func openTree(source, fsType string, o options) (int, error) {
	if o.bind == 0 {
		return openFilesystem(source, fsType, o)
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|o.bind.recursive())
	if err != nil {
		return -1, fmt.Errorf("open_tree: %w", err)
	}
	return tree, nil
}

// attach mounts the tree at the target.
func (m *Mounter) attach(tree int, target string, o options) error {
	on, err := m.files.OpenFile(target, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer on.Close()
	if err := unix.MoveMount(tree, "", int(on.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	if o.bind == 0 || o.flags == 0 {
		return nil
	}
	// A bind mount inherits the flags of its source.
	if err := unix.Mount("", safepath.Self(tree), "", unix.MS_REMOUNT|unix.MS_BIND|o.flags, ""); err != nil {
		return errors.Join(fmt.Errorf("set flags: %w", err), unix.Unmount(safepath.Self(tree), unix.MNT_DETACH))
	}
	return nil
}

// Unmount unmounts the target; if it is not mounted, it does nothing. It may wait for a server: see
// UnmountRemote.
func (m *Mounter) Unmount(target string) error {
	err := m.files.In(target, func(parent int, name string) error { return unmountAt(parent, name, 0) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	return nil
}

// unmountAt unmounts the name in the directory.
func unmountAt(parent int, name string, flags int) error {
	err := unix.Unmount(filepath.Join(safepath.Self(parent), name), flags|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) { // it is no mount
		return nil
	}
	return err
}

// GetMountRefs returns the other mount points of the filesystem at the path.
func (m *Mounter) GetMountRefs(path string) ([]string, error) {
	if !m.files.Contains(path) { // a path of the host
		return m.Interface.GetMountRefs(path)
	}
	real, err := m.files.Real(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return mount.SearchMountPoints(real, "/proc/self/mountinfo")
}

// IsLikelyNotMountPoint reports whether the directory is on the same filesystem as its parent. It
// does not detect bind mounts.
func (m *Mounter) IsLikelyNotMountPoint(path string) (bool, error) {
	var here, parent unix.Stat_t
	err := m.files.In(path, func(fd int, name string) error {
		if err := unix.Fstat(fd, &parent); err != nil {
			return &os.PathError{Op: "fstat", Path: filepath.Dir(path), Err: err}
		}
		if err := unix.Fstatat(fd, name, &here, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return &os.PathError{Op: "lstat", Path: path, Err: err}
		}
		return nil
	})
	if err != nil {
		return true, err
	}
	return here.Dev == parent.Dev, nil
}
