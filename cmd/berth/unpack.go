package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// unpack writes what an archive has under the name to a path of this machine: a folder's content
// into the folder to, which may exist; a file to the path, or into it if that is a folder.
//
// The archive comes from a container, which may be hostile. Nothing is written outside of to: every
// file is opened below it by os.Root, and the links that are made lead nowhere else.
func unpack(r io.Reader, name, to string, warnings io.Writer) error {
	archive := tar.NewReader(r)
	var u *unpacker
	for {
		h, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			// What fills the last block its writer wants to get rid of. Why there was nothing
			// before it, the writer says itself.
			_, err := io.Copy(io.Discard, r)
			if u != nil {
				err = errors.Join(err, u.root.Close())
			}
			return err
		case err != nil:
			err = fmt.Errorf("read the archive: %w", err)
		case u == nil:
			if u, err = openUnpacker(h, name, to, warnings); err == nil {
				err = u.write(h, archive)
			}
		default:
			err = u.write(h, archive)
		}
		if err != nil {
			if u != nil {
				err = errors.Join(err, u.root.Close())
			}
			return err
		}
	}
}

// unpacker writes below one folder.
type unpacker struct {
	root     *os.Root
	name     string // what is asked for, in the archive
	as       string // the same below root: "." of a folder
	warnings io.Writer
}

// openUnpacker decides by the first member of an archive where it goes.
func openUnpacker(first *tar.Header, name, to string, warnings io.Writer) (*unpacker, error) {
	u := &unpacker{name: name, as: ".", warnings: warnings}
	dir := to
	if first.Typeflag != tar.TypeDir {
		if info, err := os.Stat(to); err == nil && info.IsDir() || strings.HasSuffix(to, "/") {
			to = filepath.Join(to, name)
		}
		if real, err := filepath.EvalSymlinks(to); err == nil {
			to = real // it is the user's own link
		}
		dir, u.as = filepath.Dir(to), filepath.Base(to)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	var err error
	u.root, err = os.OpenRoot(dir)
	return u, err
}

// place returns where a member of the archive belongs, below root.
func (u *unpacker) place(member string) (string, error) {
	clean := path.Clean(member)
	if u.name == "." || u.name == "/" {
		if filepath.IsLocal(clean) {
			return clean, nil
		}
	} else if clean == u.name {
		return u.as, nil
	} else if below, ok := strings.CutPrefix(clean, u.name+"/"); ok && filepath.IsLocal(below) {
		return path.Join(u.as, below), nil
	}
	return "", fmt.Errorf("the archive has %q, which is not part of %q: refused", member, u.name)
}

func (u *unpacker) write(h *tar.Header, content io.Reader) error {
	name, err := u.place(h.Name)
	if err != nil {
		return err
	}
	if h.Typeflag != tar.TypeDir {
		if err := u.root.MkdirAll(path.Dir(name), 0o777); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.root.MkdirAll(name, h.FileInfo().Mode().Perm()|0o700)
	case tar.TypeReg:
		return u.writeFile(name, h.FileInfo().Mode().Perm(), content)
	case tar.TypeSymlink:
		return u.writeSymlink(name, h)
	case tar.TypeLink:
		return u.writeLink(name, h)
	}
	return u.skip("special file: %q", h.Name)
}

// skip tells that a member is left out.
func (u *unpacker) skip(format string, a ...any) error {
	_, err := fmt.Fprintf(u.warnings, "warning: skipping "+format+"\n", a...)
	return err
}

func (u *unpacker) writeFile(name string, mode fs.FileMode, content io.Reader) error {
	if err := u.clear(name); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", f.Name(), err)
	}
	return nil
}

// clear takes away what is neither a file nor a folder, so that nothing is written through a link
// or into a pipe.
func (u *unpacker) clear(name string) error {
	info, err := u.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir() || info.Mode().IsRegular():
		return nil
	}
	return u.root.Remove(name)
}

// writeSymlink makes a link that leads to a place below root, and leaves out any other.
func (u *unpacker) writeSymlink(name string, h *tar.Header) error {
	inside, err := u.leadsInside(name, h.Linkname)
	if err != nil {
		return err
	}
	if !inside {
		return u.skip("symlink: %q -> %q: it leads out of what is copied", h.Name, h.Linkname)
	}
	if err := u.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return u.root.Symlink(h.Linkname, name)
}

// leadsInside reports whether a link by this name leads to a place below root, whatever other links
// there are or will be: it goes up only at its beginning, where it goes through real folders, and
// not above root; from there it goes down, and each link on that way is itself one that leads
// inside.
func (u *unpacker) leadsInside(name, target string) (bool, error) {
	if path.IsAbs(target) || target == "" {
		return false, nil
	}
	depth := 0
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		info, err := u.root.Lstat(dir)
		if err != nil {
			return false, err
		}
		if !info.IsDir() {
			return false, nil
		}
		depth++
	}
	down := false
	for part := range strings.SplitSeq(target, "/") {
		switch {
		case part == "" || part == ".":
		case part != "..":
			down = true
		case down || depth == 0:
			return false, nil
		default:
			depth--
		}
	}
	return true, nil
}

// writeLink makes another name of a file that was unpacked before.
func (u *unpacker) writeLink(name string, h *tar.Header) error {
	old, err := u.place(h.Linkname)
	if err != nil {
		return u.skip("link: %q to %q: it leads out of what is copied", h.Name, h.Linkname)
	}
	info, err := u.root.Lstat(old)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return u.skip("link: %q to %q, which is no file that was copied", h.Name, h.Linkname)
	}
	if err != nil || old == name {
		return err
	}
	if err := u.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return u.root.Link(old, name)
}
