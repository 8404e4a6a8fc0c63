package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The folder of a pod is the agent's own. But a container may have been given it, by a hostPath, and may change it at any moment: so no link in it is
// followed, and what was found there is known by its descriptor.

// locate splits a path of the agent into the folder of all pods, or that of all plugins, which may be reached through links, and the rest.
func (m *Manager) locate(path string) (top, rest string, err error) {
	kind, rest, ok := strings.Cut(strings.TrimPrefix(path, m.root+"/"), "/")
	if top = filepath.Join(m.root, kind); !ok || path != filepath.Join(top, rest) || !isElement(kind) {
		return "", "", fmt.Errorf("%s is in no folder of a pod or plugin", path)
	}
	return top, rest, nil
}

// openFolder opens a directory below one of these; a link on the way is an error (ELOOP).
func (m *Manager) openFolder(path string) (*os.File, error) {
	top, rest, err := m.locate(path)
	if err != nil {
		return nil, err
	}
	at, err := openRoot(top)
	if err != nil {
		return nil, err
	}
	defer unix.Close(at)
	fd, err := openReal(at, rest)
	if err != nil {
		return nil, folderError(path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func folderError(path string, err error) error {
	if errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("a link is on the way to %s, in the agent's own folder: remove it: %w", path, err)
	}
	return &fs.PathError{Op: "open", Path: path, Err: err}
}

// openReal opens the directory at the path inside the directory root, through no link.
func openReal(root int, path string) (int, error) {
	how := &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	}
	return openat2(root, path, how)
}

// makeFolder opens a directory as openFolder does, which it makes with mode last, and those above it that are missing with mode parents. An
// existing one is left as it is.
func (m *Manager) makeFolder(path string, parents, last uint32) (*os.File, error) {
	f, err := m.openFolder(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	top, rest, err := m.locate(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(top, fs.FileMode(parents)); err != nil {
		return nil, err
	}
	at, err := openRoot(top)
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
		next, err := openReal(at, name)
		unix.Close(at)
		if err != nil {
			return nil, folderError(path, err)
		}
		at = next
	}
	return os.NewFile(uintptr(at), path), nil
}

// ensureFolder makes the directory as makeFolder does.
func (m *Manager) ensureFolder(path string, parents, last uint32) error {
	f, err := m.makeFolder(path, parents, last)
	if err != nil {
		return err
	}
	return f.Close()
}

// removeFolder removes what is at a path below one of these, a link itself, a directory as removeTree does.
func (m *Manager) removeFolder(path string) error {
	parent, err := m.openFolder(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	return removeAny(int(parent.Fd()), filepath.Base(path), path)
}

// ensureLink makes a link below one of these, in place of another one.
func (m *Manager) ensureLink(target, link string) error {
	f, err := m.makeFolder(filepath.Dir(link), 0o750, 0o750)
	if err != nil {
		return err
	}
	defer f.Close()
	dir, name := int(f.Fd()), filepath.Base(link)
	if now, err := os.Readlink(filepath.Join(self(dir), name)); err == nil && now == target {
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

// removeLink removes a link, or a file, below one of these. That it is not there is no error.
func (m *Manager) removeLink(link string) error {
	f, err := m.openFolder(filepath.Dir(link))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Unlinkat(int(f.Fd()), filepath.Base(link), 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "unlink", Path: link, Err: err}
	}
	return nil
}

// self is a path to what the descriptor refers to, which is followed by no other process.
func self(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
