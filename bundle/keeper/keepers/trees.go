package keepers

import (
	"fmt"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/bundle/keeper/plan"
)

// openTrees opens the sources of the bind mounts as mounts that are nowhere yet. A keeper's own mounts are a
// copy from when its pod began: it would not see what was mounted later below a mount that is private, and
// nothing could go back to the host from it. The keeper finds them as this process's files, until done is
// called.
func openTrees(mounts []specs.Mount) (trees map[int]plan.Tree, done func(), err error) {
	var open []int
	done = func() {
		for _, fd := range open {
			unix.Close(fd)
		}
	}
	trees = map[int]plan.Tree{}
	for i, m := range mounts {
		all, ok, attributes := plan.TreeOptions(m)
		if !ok {
			continue
		}
		fd, file, err := openTree(m.Source, all, attributes)
		if fd >= 0 {
			open = append(open, fd)
		}
		if err != nil {
			done()
			return nil, nil, fmt.Errorf("mounts[%d] (%s): %w", i, m.Destination, err)
		}
		trees[i] = plan.Tree{At: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), File: file}
	}
	return trees, done, nil
}

// openTree opens a copy of what is at the path, with all mounts below if all is set. fd is -1 if there
// is none.
func openTree(path string, all bool, attributes uint64) (fd int, file bool, err error) {
	flags := unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC
	if all {
		flags |= unix.AT_RECURSIVE
	}
	fd, err = unix.OpenTree(unix.AT_FDCWD, path, uint(flags))
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
