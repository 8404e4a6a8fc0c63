package volumes

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host/safepath"
)

// Names that an atomic writer uses beside the files of the volume. No path of a payload begins with
// reservedPrefix.
const (
	reservedPrefix = ".."
	dataLink       = "..data"
	newDataLink    = "..data_tmp"
	dataLayout     = "..2006_01_02_15_04_05."
)

// atomicWriter makes a directory show exactly a payload; readers see either the old files or the
// new ones:
//
//	..2026_01_02_03_04_05.678/   the files
//	..data -> ..2026_…           replaced by rename: the moment of the change
//	name -> ..data/name          one per first element of a path
//
// It may be interrupted anywhere; the next writer continues from the state that it finds. A
// container that can write into the volume may have replaced any entry by a link, a directory or a
// mount: the writer never writes, changes or removes anything outside of the volume through them.
type atomicWriter struct {
	dir   int      // descriptor of the volume
	root  *os.Root // the volume, as well
	path  string   // of the volume, for messages
	files payload
	group *int64 // group of all files in the volume: the pod's fsGroup; nil: the agent's own
	log   *slog.Logger

	data string // the directory that ..data links to, "" for none
}

// writeStep is a part of the work after which the volume shows either the old or the new payload,
// and the writer may be interrupted.
type writeStep struct {
	name string
	do   func() error
}

// writeAtomically makes the directory show the files. It reports whether the shown files changed;
// if not, nothing is replaced, so that file watchers are not triggered.
func writeAtomically(dir *os.File, files payload, group *int64, log *slog.Logger) (changed bool, err error) {
	w, err := newAtomicWriter(dir, files, group, log)
	if err != nil {
		return false, err
	}
	defer w.root.Close()
	changed = !w.isCurrent()
	steps := w.finish()
	if changed {
		steps = w.replace()
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return false, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return changed, nil
}

func newAtomicWriter(dir *os.File, files payload, group *int64, log *slog.Logger) (*atomicWriter, error) {
	fd := int(dir.Fd())
	root, err := os.OpenRoot(safepath.Self(fd))
	if err != nil {
		return nil, err
	}
	return &atomicWriter{dir: fd, root: root, path: dir.Name(), files: files, group: group, log: log}, nil
}

// replace returns the steps that replace the shown payload.
func (w *atomicWriter) replace() []writeStep {
	return append([]writeStep{
		{"write files", w.writeFiles}, {"prepare link", w.prepareLink}, {"replace link", w.replaceLink},
	}, w.finish()...)
}

// finish returns the steps that an interrupted writer of the same payload may have left undone.
func (w *atomicWriter) finish() []writeStep {
	return []writeStep{
		{"make links", w.makeLinks}, {"remove stale links", w.removeStaleLinks}, {"remove old files", w.removeOldFiles},
	}
}

// isCurrent reports whether ..data shows the payload: the same paths with the same contents and
// modes, in a directory that a writer created.
func (w *atomicWriter) isCurrent() bool {
	name, err := w.root.Readlink(dataLink)
	if err != nil || !safepath.IsElement(name) || !strings.HasPrefix(name, reservedPrefix) {
		return false
	}
	data, err := w.openData(name)
	if err != nil {
		return false
	}
	defer data.Close()
	w.data = name
	seen := 0
	err = fs.WalkDir(data.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if c, ok := w.files[name]; !ok || !d.Type().IsRegular() || !w.matches(data, name, c) {
			return errDiffers
		}
		seen++
		return nil
	})
	return err == nil && seen == len(w.files)
}

// openData opens a directory of the volume that is neither a link nor a mount point.
func (w *atomicWriter) openData(name string) (*os.Root, error) {
	fd, err := safepath.Enter(w.dir, name)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(w.path, name), Err: err}
	}
	defer unix.Close(fd)
	return os.OpenRoot(safepath.Self(fd))
}

// matches reports whether the file has the given content and its mode.
func (w *atomicWriter) matches(data *os.Root, name string, c content) bool {
	f, err := data.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0) // opening a named pipe may block
	if err != nil {
		return false
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Mode() != w.modeOf(c) || st.Size() != int64(len(c.data)) {
		return false
	}
	have, err := io.ReadAll(io.LimitReader(f, int64(len(c.data))+1))
	return err == nil && bytes.Equal(have, c.data)
}

var errDiffers = errors.New("differs")

// modeOf returns the mode of a file on disk: with a pod group, the group can read every file.
func (w *atomicWriter) modeOf(c content) fs.FileMode {
	if w.group == nil {
		return c.mode.Perm()
	}
	return c.mode.Perm() | 0o440
}

// chown sets owner and group of the descriptor's file, which may be a link. If the filesystem does
// not support this, the volume does not fail.
func (w *atomicWriter) chown(fd int, name string, owner *int64) {
	uid, gid := -1, -1
	if owner != nil {
		uid = int(*owner)
	}
	if w.group != nil {
		gid = int(*w.group)
	}
	if uid == -1 && gid == -1 {
		return
	}
	if err := unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH); err != nil {
		w.log.Warn("a volume's file keeps its owner", "path", path.Join(w.path, name), "uid", uid, "gid", gid, "error", err)
	}
}

func (w *atomicWriter) makeLink(target, name string) error {
	if err := w.root.Symlink(target, name); err != nil {
		return err
	}
	if w.group == nil {
		return nil
	}
	fd, err := unix.Openat(w.dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	w.chown(fd, name, nil)
	return nil
}

func (w *atomicWriter) writeFiles() error {
	name, err := w.makeDataDir()
	if err != nil {
		return err
	}
	if err := w.writeInto(name); err != nil {
		return errors.Join(err, w.remove(name))
	}
	w.data = name
	return nil
}

func (w *atomicWriter) makeDataDir() (string, error) {
	stamp := time.Now().Format(dataLayout)
	for {
		name := stamp + strconv.FormatUint(uint64(rand.Uint32()), 10)
		err := w.root.Mkdir(name, 0o755)
		if !errors.Is(err, fs.ErrExist) {
			return name, err
		}
	}
}

func (w *atomicWriter) writeInto(dir string) error {
	data, err := w.openData(dir)
	if err != nil {
		return err
	}
	defer data.Close()
	dirs := map[string]struct{}{".": {}}
	for _, name := range slices.Sorted(maps.Keys(w.files)) {
		for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
			dirs[parent] = struct{}{}
		}
		if err := data.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		if err := w.writeFile(data, name, w.files[name]); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(dirs)) {
		if err := w.openUp(data, name); err != nil {
			return err
		}
	}
	return nil
}

// writeFile creates a file, which must not exist.
func (w *atomicWriter) writeFile(data *os.Root, name string, c content) error {
	f, err := data.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(c.data)
	w.chown(int(f.Fd()), name, c.owner)
	// By chmod because of the umask, and after chown, which clears bits.
	return errors.Join(err, f.Chmod(w.modeOf(c)), f.Close())
}

// openUp sets group and mode of a directory.
func (w *atomicWriter) openUp(data *os.Root, name string) error {
	d, err := data.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	mode := fs.FileMode(0o755)
	if w.group != nil {
		mode |= fs.ModeSetgid
	}
	w.chown(int(d.Fd()), name, nil)
	return errors.Join(d.Chmod(mode), d.Close())
}

func (w *atomicWriter) prepareLink() error {
	if err := w.remove(newDataLink); err != nil {
		return err
	}
	return w.makeLink(w.data, newDataLink)
}

func (w *atomicWriter) replaceLink() error {
	err := w.root.Rename(newDataLink, dataLink)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := w.remove(dataLink); err != nil { // a container has created a directory there
		return err
	}
	return w.root.Rename(newDataLink, dataLink)
}

// remove removes an entry of the volume's root, without following links.
func (w *atomicWriter) remove(name string) error {
	return safepath.RemoveAt(w.dir, name, filepath.Join(w.path, name))
}

// firstElements returns the names of the payload's entries in the volume's root.
func (w *atomicWriter) firstElements() map[string]struct{} {
	out := map[string]struct{}{}
	for name := range w.files {
		element, _, _ := strings.Cut(name, "/")
		out[element] = struct{}{}
	}
	return out
}

func (w *atomicWriter) makeLinks() error {
	for name := range w.firstElements() {
		target := path.Join(dataLink, name)
		switch have, err := w.root.Readlink(name); {
		case err == nil && have == target:
			continue
		case err == nil:
			if err := w.root.Remove(name); err != nil {
				return err
			}
		case !errors.Is(err, fs.ErrNotExist):
			if err := w.removeEmptyDir(name); err != nil {
				return fmt.Errorf("%q is in the way of a file of the volume: %w", name, err)
			}
		}
		if err := w.makeLink(target, name); err != nil {
			return err
		}
	}
	return nil
}

// removeEmptyDir removes a directory that was created for a subPath while the payload did not have
// the file.
func (w *atomicWriter) removeEmptyDir(name string) error {
	st, err := w.root.Lstat(name)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return errors.New("it is neither a link nor a directory")
	}
	return w.root.Remove(name)
}

// removeStaleLinks removes links to files that the payload does not have any more, and nothing
// else.
func (w *atomicWriter) removeStaleLinks() error {
	wanted := w.firstElements()
	return w.eachEntry(func(e fs.DirEntry) error {
		name := e.Name()
		if _, ok := wanted[name]; ok || e.Type() != fs.ModeSymlink || strings.HasPrefix(name, reservedPrefix) {
			return nil
		}
		if target, err := w.root.Readlink(name); err != nil || target != path.Join(dataLink, name) {
			return err
		}
		return w.root.Remove(name)
	})
}

// removeOldFiles removes earlier data directories and leftovers of interrupted writers.
func (w *atomicWriter) removeOldFiles() error {
	return w.eachEntry(func(e fs.DirEntry) error {
		name := e.Name()
		if !strings.HasPrefix(name, reservedPrefix) || name == dataLink || name == w.data {
			return nil
		}
		return w.remove(name)
	})
}

func (w *atomicWriter) eachEntry(do func(fs.DirEntry) error) error {
	entries, err := fs.ReadDir(w.root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := do(e); err != nil {
			return err
		}
	}
	return nil
}
