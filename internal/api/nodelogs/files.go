package nodelogs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks bounds the absolute links that one name is resolved through.
const maxLinks = 8

// Logs are the logs of a node.
type Logs struct {
	// Dir is the log directory, absolute: /var/log.
	Dir string
	// Journalctl is the program that reads the journal, looked up in PATH.
	Journalctl string
}

// Open opens a file or directory below the log directory. Links are followed within it. For
// everything else the error wraps fs.ErrNotExist: missing files, files elsewhere, and pipes,
// sockets and devices.
func (l *Logs) Open(name string) (*os.File, fs.FileInfo, error) {
	f, st, err := l.open(name)
	if err != nil {
		return nil, nil, fmt.Errorf("log %q: %w", name, err)
	}
	return f, st, nil
}

func (l *Logs) open(name string) (_ *os.File, _ fs.FileInfo, err error) {
	name = strings.TrimLeft(name, "/")
	if name == "" {
		name = "."
	}
	if name, err = localName(name); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	root, err := os.OpenRoot(l.Dir)
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	f, err := l.openBelow(root, name)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() && !st.IsDir() {
		err = fmt.Errorf("neither a file nor a folder: %w", fs.ErrNotExist)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, st, nil
}

// openBelow opens name below the root. An absolute link, which os.Root rejects, is resolved below
// the root if it points there, as those of /var/log/containers do.
func (l *Logs) openBelow(root *os.Root, name string) (*os.File, error) {
	for range maxLinks {
		f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0) // opening a pipe must not block
		if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return f, err
		}
		target, linkErr := root.Readlink(name)
		if linkErr != nil || !filepath.IsAbs(target) {
			return nil, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
		}
		rel, relErr := filepath.Rel(l.Dir, target)
		if relErr != nil || !filepath.IsLocal(rel) {
			return nil, fmt.Errorf("%w: a link to what is not below the log folder", fs.ErrNotExist)
		}
		name = rel
	}
	return nil, fmt.Errorf("%w: too many links", fs.ErrNotExist)
}

// openService opens the usual log file of a service that does not log to the journal.
func (l *Logs) openService(service string) (*os.File, error) {
	for _, name := range []string{service, service + ".log", path.Join(service, service+".log")} {
		f, st, err := l.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if st.Mode().IsRegular() {
			return f, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: none of %[2]s, %[2]s.log and %[2]s/%[2]s.log is a file in %s", fs.ErrNotExist, service, l.Dir)
}
