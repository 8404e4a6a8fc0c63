// Package safepath opens files and directories in places that containers can modify: in a volume,
// or in the agent's directory of a pod or plugin, which a container may have mounted with a
// hostPath.
//
// Owns: every path lookup in these places. The kernel does each in one step (openat2(2)), and
// afterwards a file is only accessed by its descriptor.
// Reads: the file system.
// Never: follows a symbolic link in the agent's own directories, leaves a volume, or enters a mount
// to remove its contents.
package safepath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Root is the agent's root directory, an absolute path. Its top-level directories, such as those of
// all pods and of all plugins, may be reached through symbolic links that the operator has created;
// paths below them must not contain links. Methods take absolute paths in these directories.
type Root string

// locate splits a path into the top-level directory and the rest, which is "." for that directory
// itself.
func (r Root) locate(path string) (top, rest string, err error) {
	kind, rest, _ := strings.Cut(strings.TrimPrefix(path, strings.TrimSuffix(string(r), "/")+"/"), "/")
	if top = filepath.Join(string(r), kind); path != filepath.Join(top, rest) || !IsElement(kind) {
		return "", "", fmt.Errorf("%s is in no folder of a pod or plugin", path)
	}
	return top, filepath.Clean(rest), nil
}

// Contains reports whether the methods accept the path.
func (r Root) Contains(path string) bool {
	_, _, err := r.locate(path)
	return err == nil
}

// IsElement reports whether the name is a valid single element of a path.
func IsElement(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsRune(name, '/')
}

// at opens the path. The error wraps ELOOP if the path contains a symbolic link, and fs.ErrNotExist
// if it does not exist.
func (r Root) at(path string, flags int, perm uint32) (*os.File, error) {
	top, rest, err := r.locate(path)
	if err != nil {
		return nil, err
	}
	root, err := OpenRoot(top)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	fd, err := openReal(root, rest, flags, perm)
	if err != nil {
		return nil, realError(path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openReal opens the path inside the directory root, without following symbolic links.
func openReal(root int, path string, flags int, perm uint32) (int, error) {
	how := &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(perm)
	}
	return openat2(root, path, how)
}

func realError(path string, err error) error {
	if errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("a link is on the way to %s, in a folder of the agent's: remove it: %w", path, err)
	}
	return &fs.PathError{Op: "open", Path: path, Err: err}
}

// OpenReal opens a file or directory of the host by its absolute path. The error wraps ELOOP if the
// path contains a symbolic link.
func OpenReal(path string, flags int) (*os.File, error) {
	root, err := OpenRoot("/")
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	fd, err := openReal(root, strings.TrimPrefix(path, "/"), flags|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Open opens a directory.
func (r Root) Open(path string) (*os.File, error) {
	return r.at(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

// OpenFile opens a file like os.OpenFile, but does not wait for the writer of a named pipe.
func (r Root) OpenFile(path string, flags int, perm uint32) (*os.File, error) {
	if flags&unix.O_PATH == 0 {
		flags |= unix.O_NONBLOCK | unix.O_NOCTTY
	}
	return r.at(path, flags, perm)
}

// Make opens a directory. If it does not exist, Make creates it with mode last, and its missing
// parents with mode parents, less the umask. An existing directory does not change.
func (r Root) Make(path string, parents, last uint32) (*os.File, error) {
	f, err := r.Open(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	top, rest, err := r.locate(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(top, fs.FileMode(parents)); err != nil {
		return nil, err
	}
	at, err := OpenRoot(top)
	if err != nil {
		return nil, err
	}
	elements := strings.Split(rest, "/")
	for i, name := range elements {
		mode := parents
		if i == len(elements)-1 {
			mode = last
		}
		err := unix.Mkdirat(at, name, mode)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			unix.Close(at)
			return nil, &fs.PathError{Op: "mkdirat", Path: path, Err: err}
		}
		next, err := openReal(at, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		unix.Close(at)
		if err != nil {
			return nil, realError(path, err)
		}
		at = next
	}
	return os.NewFile(uintptr(at), path), nil
}

// Ensure creates the directory like Make.
func (r Root) Ensure(path string, parents, last uint32) error {
	f, err := r.Make(path, parents, last)
	if err != nil {
		return err
	}
	return f.Close()
}

// ReadDir returns the entries of a directory, unsorted.
func (r Root) ReadDir(path string) ([]fs.DirEntry, error) {
	f, err := r.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.ReadDir(-1)
}

// ReadFile returns the content of a regular file of at most limit bytes.
func (r Root) ReadFile(path string, limit int64) ([]byte, error) {
	f, err := r.OpenFile(path, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readRegular(f, path, limit)
}

// NewSuffix is the suffix of Replace's temporary file.
const NewSuffix = ".new"

// Replace atomically replaces the file at the path with the output of write: readers see the old or
// the new file, even if the agent is killed. Its directory must exist.
func (r Root) Replace(path string, perm uint32, write func(*os.File) error) error {
	return r.In(path, func(parent int, name string) error {
		next := name + NewSuffix
		if err := RemoveAt(parent, next, path+NewSuffix); err != nil { // left by an agent that was killed
			return err
		}
		fd, err := unix.Openat(parent, next, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, perm)
		if err != nil {
			return &fs.PathError{Op: "open", Path: path + NewSuffix, Err: err}
		}
		f := os.NewFile(uintptr(fd), path+NewSuffix)
		if err := errors.Join(write(f), f.Close()); err != nil {
			return err
		}
		if err := unix.Renameat(parent, next, parent, name); err != nil {
			return &os.LinkError{Op: "rename", Old: path + NewSuffix, New: path, Err: err}
		}
		return nil
	})
}

// Lstat returns the status of the path, and does not follow a final symbolic link.
func (r Root) Lstat(path string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := r.In(path, func(parent int, name string) error {
		if err := unix.Fstatat(parent, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return &fs.PathError{Op: "lstat", Path: path, Err: err}
		}
		return nil
	})
	return st, err
}

// In opens the parent directory of the path, and calls do with it and the last element.
func (r Root) In(path string, do func(parent int, name string) error) error {
	f, err := r.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer f.Close()
	return do(int(f.Fd()), filepath.Base(path))
}

// Remove removes the path: a symbolic link itself, a directory with its contents (see RemoveAt). A
// missing path is not an error.
func (r Root) Remove(path string) error {
	return r.removeBy(path, func(parent int, name string) error { return RemoveAt(parent, name, path) })
}

// RemoveEmpty removes an empty directory. A missing directory is not an error.
func (r Root) RemoveEmpty(path string) error {
	return r.removeBy(path, func(parent int, name string) error { return RemoveEmptyAt(parent, name, path) })
}

// Unlink removes a file or symbolic link. A missing file is not an error.
func (r Root) Unlink(path string) error {
	return r.removeBy(path, func(parent int, name string) error {
		if err := unix.Unlinkat(parent, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return &fs.PathError{Op: "unlink", Path: path, Err: err}
		}
		return nil
	})
}

func (r Root) removeBy(path string, remove func(parent int, name string) error) error {
	err := r.In(path, remove)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// EnsureLink creates a symbolic link, and replaces an existing file or link.
func (r Root) EnsureLink(target, link string) error {
	f, err := r.Make(filepath.Dir(link), 0o750, 0o750)
	if err != nil {
		return err
	}
	defer f.Close()
	dir, name := int(f.Fd()), filepath.Base(link)
	if now, err := os.Readlink(filepath.Join(Self(dir), name)); err == nil && now == target {
		return nil
	}
	if err := unix.Unlinkat(dir, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "unlink", Path: link, Err: err}
	}
	if err := unix.Symlinkat(target, dir, name); err != nil {
		return &os.LinkError{Op: "symlink", Old: target, New: link, Err: err}
	}
	return nil
}

// Real returns the path with the operator's symbolic links resolved, as in the kernel's mount
// tables.
func (r Root) Real(path string) (string, error) {
	var real string
	err := r.In(path, func(parent int, name string) error {
		dir, err := os.Readlink(Self(parent))
		real = filepath.Join(dir, name)
		return err
	})
	return real, err
}
