package safepath

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Batch is how many names of a directory are held at one time; a volume may have millions.
const Batch = 1024

// deepest is the nesting that removal follows with one open file per level. What lies deeper is
// first moved up, so that a container cannot make its volume unremovable.
const deepest = 64

// remover removes a tree inside one filesystem.
type remover struct {
	root  int // descriptor of the tree's root
	moved int
}

// removeIn removes the directory name inside parent with all it holds; the path is for errors only.
// A missing directory is no error.
func removeIn(parent int, name, path string) error {
	root, err := Enter(parent, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	defer unix.Close(root)
	r := &remover{root: root}
	if err := r.removeContents(root, path, 0); err != nil {
		return err
	}
	return RemoveEmptyAt(parent, name, path)
}

// RemoveAt removes what is at the name in the directory parent: a link itself, a directory with all
// it holds. It follows no link and enters no mount, wherever it comes from; then the error is EXDEV
// and what is mounted is untouched. That nothing is there is no error. The path is for errors only.
func RemoveAt(parent int, name, path string) error {
	err := unix.Unlinkat(parent, name, 0)
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EISDIR):
		return removeIn(parent, name, path)
	}
	return &fs.PathError{Op: "unlink", Path: path, Err: err}
}

// removeContents removes what is in the directory fd, whose path is for errors only. It ends when
// the directory is empty: in the root it so removes what was moved up meanwhile.
func (r *remover) removeContents(fd int, path string, depth int) error {
	for {
		names, err := ReadNames(fd)
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		if len(names) == 0 {
			return nil
		}
		for _, name := range names {
			if err := r.remove(fd, name, filepath.Join(path, name), depth); err != nil {
				return err
			}
		}
	}
}

func (r *remover) remove(parent int, name, path string, depth int) error {
	err := unix.Unlinkat(parent, name, 0)
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return nil
	case !errors.Is(err, unix.EISDIR):
		return &fs.PathError{Op: "unlink", Path: path, Err: err}
	}
	if depth >= deepest {
		return r.moveUp(parent, name, path)
	}
	fd, err := Enter(parent, name)
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	err = r.removeContents(fd, path, depth+1)
	unix.Close(fd)
	if err != nil {
		return err
	}
	return RemoveEmptyAt(parent, name, path)
}

// moveUp moves the directory to the tree's root under a name that is not taken there.
func (r *remover) moveUp(parent int, name, path string) error {
	for {
		r.moved++
		err := unix.Renameat2(parent, name, r.root, ".removed-"+strconv.Itoa(r.moved), unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return &fs.PathError{Op: "rename", Path: path, Err: err}
		}
		return nil
	}
}

// Enter opens the directory name inside parent, unless it is a symlink or a mount.
func Enter(parent int, name string) (int, error) {
	fd, err := openat2(parent, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	})
	if errors.Is(err, unix.EXDEV) {
		return -1, fmt.Errorf("a filesystem is still mounted there: %w", err)
	}
	return fd, err
}

// ReadNames returns some names in the directory, from its beginning; none means that it is empty.
func ReadNames(fd int) ([]string, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(dup), "directory")
	defer f.Close()
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(Batch)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

// RemoveEmptyAt removes the directory, which holds nothing, in the directory parent. Data in it is
// somebody's and stays, as an error. A missing directory is no error. The path is for errors only.
func RemoveEmptyAt(parent int, name, path string) error {
	if err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: path, Err: err}
	}
	return nil
}
