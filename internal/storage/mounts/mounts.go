// Package mounts mounts filesystems in folders that containers may change, and unmounts them.
//
// Owns: what of mount(8) the agent needs: on which directory a filesystem comes, which is known by
// its descriptor (package safepath), and how long a server may take to answer.
// Reads: the mount table, through k8s.io/mount-utils.
// Never: mounts or unmounts where a link leads, or hands an option to a shell.
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

// Mounter mounts in the folders of pods and plugins. Its paths are absolute ones there; a link in
// one, below the folder of all pods or plugins, is an error.
type Mounter struct {
	mount.Interface // reads the mount table
	files           safepath.Root
	// passage is where a program mounts what is then moved to its place.
	passage string
}

// New returns a Mounter for the agent with these directories. It does nothing yet.
func New(rootDir, runDir string) *Mounter {
	return &Mounter{Interface: mount.New(""), files: safepath.Root(filepath.Clean(rootDir)), passage: filepath.Join(runDir, "mounts")}
}

// Mount mounts the source at the target, an existing directory, or file where a file is bound, with
// the options of mount(8).
func (m *Mounter) Mount(source, target, fsType string, options []string) error {
	return m.MountSensitive(source, target, fsType, options, nil)
}

// MountSensitiveWithoutSystemd does the same.
func (m *Mounter) MountSensitiveWithoutSystemd(source, target, fsType string, options, sensitive []string) error {
	return m.MountSensitive(source, target, fsType, options, sensitive)
}

// MountSensitive does the same with options that are in no error. Errors do not name the source,
// which their reader has.
func (m *Mounter) MountSensitive(source, target, fsType string, options, sensitive []string) error {
	all := slices.Concat(options, sensitive)
	o := parseOptions(all)
	tree, err := openTree(source, fsType, o)
	if errors.Is(err, unix.ENODEV) && o.bind == 0 { // a program may know the filesystem
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

// openTree returns a descriptor of a mount that is nowhere yet: of a directory or file that is
// there already, or of another filesystem.
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
	// What is bound comes with the flags of where it comes from.
	if err := unix.Mount("", safepath.Self(tree), "", unix.MS_REMOUNT|unix.MS_BIND|o.flags, ""); err != nil {
		return errors.Join(fmt.Errorf("set flags: %w", err), unix.Unmount(safepath.Self(tree), unix.MNT_DETACH))
	}
	return nil
}

// Unmount unmounts what is mounted at the target; where nothing is, it does nothing. It may wait
// for a server: see UnmountRemote.
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

// unmountAt unmounts what is mounted on the name in the directory.
func unmountAt(parent int, name string, flags int) error {
	err := unix.Unmount(filepath.Join(safepath.Self(parent), name), flags|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) { // it is no mount
		return nil
	}
	return err
}

// GetMountRefs returns where else what is mounted at the path is mounted.
func (m *Mounter) GetMountRefs(path string) ([]string, error) {
	if !m.files.Contains(path) { // the host's
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

// IsLikelyNotMountPoint reports whether the directory is of the same filesystem as the one that it
// is in. Of a bind mount it does not tell.
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
