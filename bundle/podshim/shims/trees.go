package shims

import (
	"fmt"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/bundle/podshim/plan"
)

// openTrees opens the sources of the bind mounts as detached mounts. A pod shim's own mounts are a
// copy from the start of its pod: it would not see later mounts below a private mount, and could
// not propagate any to the host. The pod shim finds them as this process's descriptors, until done
// is called. users is the file of the pod's user namespace.
func openTrees(spec *specs.Spec, users string) (trees map[int]plan.Tree, done func(), err error) {
	var open []int
	done = func() {
		for _, fd := range open {
			unix.Close(fd)
		}
	}
	trees = map[int]plan.Tree{}
	for i, m := range spec.Mounts {
		all, ok, attributes := plan.TreeOptions(m)
		if !ok {
			continue
		}
		var flags uint
		if all {
			flags = unix.AT_RECURSIVE
		}
		fd, file, err := openTree(m.Source, flags, attributes)
		if fd >= 0 {
			open = append(open, fd)
		}
		if err == nil && len(m.UIDMappings) > 0 && plan.HasUserNamespace(spec) {
			err = mapIDs(fd, users)
		}
		if err != nil {
			done()
			return nil, nil, fmt.Errorf("mounts[%d] (%s): %w", i, m.Destination, err)
		}
		trees[i] = plan.Tree{At: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), File: file}
	}
	return trees, done, nil
}

// openTree opens a detached copy of the mount at path, with flags of open_tree(2) such as
// AT_RECURSIVE. fd is -1 if the path does not exist.
func openTree(path string, flags uint, attributes uint64) (fd int, file bool, err error) {
	fd, err = unix.OpenTree(unix.AT_FDCWD, path, flags|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, false, &os.PathError{Op: "open mount", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fd, false, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if attributes != 0 {
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attributes}); err != nil {
			return fd, false, &os.PathError{Op: "change mounts below", Path: path, Err: err}
		}
	}
	return fd, st.Mode&unix.S_IFMT != unix.S_IFDIR, nil
}

// mapIDs sets the ID mapping of a mount to that of a user namespace.
func mapIDs(tree int, users string) error {
	f, err := os.Open(users)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(f.Fd())}); err != nil {
		return &os.PathError{Op: "map ids by", Path: users, Err: err}
	}
	return nil
}

// usernsPath returns the file of the pod's user namespace, if it has one.
func (p *pod) usernsPath() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return plan.UserNamespacePath(p.record.Pid)
}
