package safepath

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// longest is how long a path is that a walk has looked up at once; the kernel takes somewhat more
// (PATH_MAX).
const longest = 3000

// Walk shows everything that is in the directory, and that itself, however deep, but enters no
// mount and follows no link. What vanishes meanwhile, or may not be read, is left out. It holds one
// directory open at a time, and one more for each longest bytes of path.
func Walk(ctx context.Context, root *os.File, see func(*unix.Stat_t)) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return &os.PathError{Op: "fstat", Path: root.Name(), Err: err}
	}
	see(&st)
	return walk(ctx, int(root.Fd()), st.Dev, see)
}

// walk shows what is in the directory root.
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

// enterFar hands over the directory name of a directory that is far from root, unless it is gone.
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

// seeIn shows what is directly in the directory at the path, and returns the directories among it.
func seeIn(root int, path string, dev uint64, see func(*unix.Stat_t)) (dirs []string, err error) {
	fd, err := Enter(root, path)
	if err != nil {
		return nil, ignoreGone(err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	for {
		names, _ := f.Readdirnames(Batch) // a directory that cannot be read any more has been removed
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

// ignoreGone leaves out that something is not there any more, may not be read, or is a mount.
func ignoreGone(err error) error {
	for _, e := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV, unix.EACCES, unix.EPERM} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}
