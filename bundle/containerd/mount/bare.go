// Package mount has the runtime read the host's table of mounts only where something can be mounted.
// The build puts this file into containerd's package of the same name (core/mount), which calls it
// (bundle.mk). Containerd itself reads all of the table when it takes the folder of a container away; the
// more pods there are, the longer it is.
package mount

import (
	"os"

	"golang.org/x/sys/unix"
)

// bare reports whether a folder is empty and nothing is mounted on it, so that nothing is mounted below
// it either. What cannot be known is not bare.
func bare(dir string) bool {
	var st unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR ||
		st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return false
	}
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) == 0
}
