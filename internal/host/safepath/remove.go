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

// Batch is the number of directory names that are read at a time; a volume may have millions.
const Batch = 1024

// deepest is the maximum depth of removal, with one open file per level. Deeper directories are
// moved up first, so that a container cannot make its volume unremovable.
const deepest = 64

// remover removes a tree within one file system.
type remover struct {
	root  int // descriptor of the tree's root
	moved int
}

// removeIn removes the directory name inside parent with its contents; path is only for errors. A
// missing directory is not an error.
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

// RemoveAt removes name in the directory parent: a symbolic link itself, a directory with its
// contents. It does not follow links or enter mounts; at a mount it returns EXDEV and leaves the
// mounted files untouched. A missing name is not an error. path is only for errors.
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

// removeContents removes the contents of the directory fd; path is only for errors. It repeats
// until the directory is empty, so at the root it also removes directories that were moved up
// meanwhile.
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

// moveUp moves the directory to the tree's root under an unused name.
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

// Enter opens the directory name inside parent, unless it is a symbolic link or a mount point.
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

// ReadNames returns up to Batch names in the directory, from its beginning; none means that it is
// empty.
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

// RemoveEmptyAt removes an empty directory in the directory parent. A directory with contents
// stays, and is an error. A missing directory is not an error. path is only for errors.
func RemoveEmptyAt(parent int, name, path string) error {
	if err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: path, Err: err}
	}
	return nil
}
