package mounts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"
)

// Share makes the directory part of a shared mount, which container mounts with mountPropagation
// require (mount_namespaces(7)). Without systemd, a host's mounts are private: the directory is
// then bind-mounted on itself. mark is a file that records this for Unshare; it must not survive a
// reboot. A directory that is shared already is not changed. If there are mounts below, which the
// new mount would hide, Share does nothing and the error names them.
func Share(dir, mark string) error {
	d, err := findPlace(dir)
	if err != nil {
		return fmt.Errorf("share %s: %w", dir, err)
	}
	switch {
	case d.shared:
		return nil
	case d.own:
	case len(d.below) > 0:
		return fmt.Errorf("share %s: it is in a private mount, and mounted below it are %s", dir, strings.Join(d.below, ", "))
	default:
		// The mark first: a mount without it would never be removed.
		if err := os.WriteFile(mark, nil, 0o600); err != nil {
			return fmt.Errorf("share %s: %w", dir, err)
		}
		if err := unix.Mount(d.path, d.path, "", unix.MS_BIND, ""); err != nil {
			return errors.Join(fmt.Errorf("share %s: mount it on itself: %w", dir, err), os.Remove(mark))
		}
	}
	if err := unix.Mount("", d.path, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share %s: %w", dir, err)
	}
	return nil
}

// Unshare removes the mount of Share, if mark exists, unless there are mounts below: the error
// names them. Files there may be open.
func Unshare(dir, mark string) error {
	if _, err := os.Lstat(mark); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	d, err := findPlace(dir)
	if err != nil {
		return fmt.Errorf("undo the mount of %s: %w", dir, err)
	}
	if len(d.below) > 0 {
		return fmt.Errorf("undo the mount of %s: still mounted below it are %s", dir, strings.Join(d.below, ", "))
	}
	if d.itself { // not a disk that was mounted there, with a mark that survived a reboot
		if err := unix.Unmount(d.path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("undo the mount of %s: %w", dir, err)
		}
	}
	return os.Remove(mark)
}

// place is the position of a directory in the mount table.
type place struct {
	path   string   // without links
	own    bool     // the directory is a mount point
	itself bool     // of a bind mount of itself, by its name
	shared bool     // its mount is shared
	below  []string // mount points below it
}

func findPlace(dir string) (place, error) {
	path, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return place{}, err
	}
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &st); err != nil {
		return place{}, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return place{}, errors.New("the kernel does not tell in which mount it is: use Linux 5.8 or newer")
	}
	table, err := mount.ParseMountInfo("/proc/self/mountinfo")
	if err != nil {
		return place{}, err
	}
	return computePlace(path, int(st.Mnt_id), table)
}

// computePlace finds a directory, without links in its path, in the mount table; id is that of its
// mount.
func computePlace(path string, id int, table []mount.MountInfo) (place, error) {
	i := slices.IndexFunc(table, func(m mount.MountInfo) bool { return m.ID == id })
	if i < 0 {
		return place{}, fmt.Errorf("mount %d is not in the mount table", id)
	}
	p := place{path: path, own: table[i].MountPoint == path}
	p.itself = p.own && filepath.Base(table[i].Root) == filepath.Base(path) // it may be in a subvolume
	p.shared = slices.ContainsFunc(table[i].OptionalFields, func(f string) bool { return strings.HasPrefix(f, "shared:") })
	for _, m := range table {
		if strings.HasPrefix(m.MountPoint, path+"/") {
			p.below = append(p.below, m.MountPoint)
		}
	}
	return p, nil
}
