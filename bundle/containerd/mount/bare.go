// Package mount makes the runtime read the host's mount table only if something may be mounted. The
// build puts this file into containerd's package of the same name (core/mount), which calls it
// (bundle/patches). Upstream containerd reads the whole table when it removes a container's
// directory; it grows with the number of pods.
package mount

import (
	"os"

	"golang.org/x/sys/unix"
)

// bare reports whether a directory is empty and not a mount point, so that nothing is mounted below
// it either. It returns false if that is unknown.
func bare(dir string) bool {
	var st unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR ||
		st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return false
	}
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) == 0
}
