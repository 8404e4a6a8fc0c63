package safepath

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// longest is the maximum length of a path that is looked up at once; the kernel's limit (PATH_MAX)
// is somewhat higher.
const longest = 3000

// Walk calls see for the directory and everything in it, at any depth, but does not enter mounts or
// follow symbolic links. It skips files that vanish or must not be read. It keeps one directory
// open at a time, and one more for each longest bytes of path.
func Walk(ctx context.Context, root *os.File, see func(*unix.Stat_t)) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return &os.PathError{Op: "fstat", Path: root.Name(), Err: err}
	}
	see(&st)
	return walk(ctx, int(root.Fd()), st.Dev, see)
}

// walk calls see for everything in the directory root.
func walk(ctx context.Context, root int, dev uint64, see func(*unix.Stat_t)) error {
	var far []string
	for left := []string{"."}; len(left) > 0; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		path := left[len(left)-1]
		left = left[:len(left)-1]
		within, err := seeIn(root, path, dev, see)
		if err != nil {
			return err
		}
		for _, name := range within {
			if next := filepath.Join(path, name); len(next) > longest {
				far = append(far, next)
			} else {
				left = append(left, next)
			}
		}
	}
	for _, path := range far {
		dir, name := filepath.Split(path)
		err := enterFar(root, strings.TrimSuffix(dir, "/"), name, func(fd int) error { return walk(ctx, fd, dev, see) })
		if err != nil {
			return err
		}
	}
	return nil
}

// enterFar calls visit with the directory name in dir, unless it was removed.
func enterFar(root int, dir, name string, visit func(fd int) error) error {
	parent, err := Enter(root, dir)
	if err != nil {
		return ignoreGone(err)
	}
	defer unix.Close(parent)
	fd, err := Enter(parent, name)
	if err != nil {
		return ignoreGone(err)
	}
	defer unix.Close(fd)
	return visit(fd)
}

// seeIn calls see for the entries of the directory at the path, and returns its subdirectories.
func seeIn(root int, path string, dev uint64, see func(*unix.Stat_t)) (dirs []string, err error) {
	fd, err := Enter(root, path)
	if err != nil {
		return nil, ignoreGone(err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	for {
		names, _ := f.Readdirnames(Batch) // an unreadable directory was removed
		for _, name := range names {
			var st unix.Stat_t
			err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
			if err != nil || st.Dev != dev {
				if ignoreGone(err) != nil {
					return nil, &os.PathError{Op: "lstat", Path: filepath.Join(path, name), Err: err}
				}
				continue
			}
			see(&st)
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				dirs = append(dirs, name)
			}
		}
		if len(names) == 0 {
			return dirs, nil
		}
	}
}

// ignoreGone ignores errors of files that were removed, must not be read, or are mounts.
func ignoreGone(err error) error {
	for _, e := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV, unix.EACCES, unix.EPERM} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}
