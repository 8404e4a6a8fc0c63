package mounts

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// attributes maps mount flags to those of fsmount(2).
var attributes = []struct {
	flag      uintptr
	attribute int
}{
	{unix.MS_RDONLY, unix.MOUNT_ATTR_RDONLY},
	{unix.MS_NOSUID, unix.MOUNT_ATTR_NOSUID},
	{unix.MS_NODEV, unix.MOUNT_ATTR_NODEV},
	{unix.MS_NOEXEC, unix.MOUNT_ATTR_NOEXEC},
	{unix.MS_NODIRATIME, unix.MOUNT_ATTR_NODIRATIME},
	{unix.MS_NOSYMFOLLOW, unix.MOUNT_ATTR_NOSYMFOLLOW},
	{unix.MS_NOATIME, unix.MOUNT_ATTR_NOATIME},
	{unix.MS_STRICTATIME, unix.MOUNT_ATTR_STRICTATIME},
}

func computeAttributes(flags uintptr) int {
	if flags&unix.MS_NOATIME != 0 {
		flags &^= unix.MS_STRICTATIME // they are mutually exclusive
	}
	out := 0
	for _, a := range attributes {
		if flags&a.flag != 0 {
			out |= a.attribute
		}
	}
	return out
}

// openFilesystem returns a descriptor of a detached mount of the filesystem. A read-only device is
// mounted read-only, as by mount(8).
func openFilesystem(source, fsType string, o options) (int, error) {
	tree, err := openFilesystemAs(source, fsType, o)
	if o.flags&unix.MS_RDONLY == 0 && (errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES)) {
		o.flags |= unix.MS_RDONLY
		return openFilesystemAs(source, fsType, o)
	}
	return tree, err
}

func openFilesystemAs(source, fsType string, o options) (int, error) {
	fd, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fd)
	set := append([][2]string{{"source", source}}, o.ofFilesystem...)
	if o.flags&unix.MS_RDONLY != 0 {
		set = append(set, [2]string{"ro"})
	}
	for _, kv := range set {
		if kv[1] == "" {
			err = unix.FsconfigSetFlag(fd, kv[0])
		} else {
			err = unix.FsconfigSetString(fd, kv[0], kv[1])
		}
		if err != nil {
			return -1, explain(fd, "option "+kv[0], err)
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return -1, explain(fd, "create", err)
	}
	tree, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, computeAttributes(o.flags))
	if err != nil {
		return -1, explain(fd, "fsmount", err)
	}
	return tree, nil
}

// explain adds to an error the kernel's messages from the filesystem context.
func explain(fd int, step string, err error) error {
	var said []string
	line := make([]byte, 4096)
	for {
		n, e := unix.Read(fd, line)
		if e != nil || n <= 0 {
			break
		}
		// "e tmpfs: Unknown parameter 'x'": an error, a warning or an info.
		if _, text, ok := bytes.Cut(line[:n], []byte(" ")); ok {
			said = append(said, strings.TrimSpace(string(text)))
		}
	}
	if len(said) == 0 {
		return fmt.Errorf("%s: %w", step, err)
	}
	return fmt.Errorf("%s: %w: %s", step, err, strings.Join(said, "; "))
}
