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

// Share makes the directory part of a shared mount, which mounts of containers need that are to
// reach the host or to follow it (mountPropagation; mount_namespaces(7)). Where systemd is not, a
// host's mounts are private: the directory is then mounted on itself. The mark is a file that says
// so for Unshare; it is to be forgotten at a reboot. A directory that is shared already stays as it
// is. Where something is mounted below, which the new mount would hide, nothing is done, and the
// error names it.
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
		// The mark is first: a mount without it would stay for ever.
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

// Unshare undoes what Share did, as the mark tells, unless something is still mounted below: the
// error names it. Files there may be open.
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
	if d.itself { // and not a disk that has come there since a mark that a reboot did not forget
		if err := unix.Unmount(d.path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("undo the mount of %s: %w", dir, err)
		}
	}
	return os.Remove(mark)
}

// place is where a directory is in the mount table.
type place struct {
	path   string   // without links
	own    bool     // something is mounted on the directory itself
	itself bool     // and that is, by its name, the directory itself
	shared bool     // the mount that it is in is
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

// computePlace finds a directory, which has no links in its path, in the mount table; id is that of
// the mount that it is in.
func computePlace(path string, id int, table []mount.MountInfo) (place, error) {
	i := slices.IndexFunc(table, func(m mount.MountInfo) bool { return m.ID == id })
	if i < 0 {
		return place{}, fmt.Errorf("mount %d is not in the mount table", id)
	}
	p := place{path: path, own: table[i].MountPoint == path}
	p.itself = p.own && filepath.Base(table[i].Root) == filepath.Base(path) // below it may be a subvolume
	p.shared = slices.ContainsFunc(table[i].OptionalFields, func(f string) bool { return strings.HasPrefix(f, "shared:") })
	for _, m := range table {
		if strings.HasPrefix(m.MountPoint, path+"/") {
			p.below = append(p.below, m.MountPoint)
		}
	}
	return p, nil
}
