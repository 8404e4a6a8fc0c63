package volumes

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Names that an atomic writer keeps beside the files of the volume. No path of a payload begins like them.
const (
	reservedPrefix = ".."
	dataLink       = "..data"
	newDataLink    = "..data_tmp"
	dataLayout     = "..2006_01_02_15_04_05."
)

// atomicWriter makes a directory show exactly a payload, so that whoever reads it sees either all of the old or all of the new:
//
//	..2026_01_02_03_04_05.678/   the files
//	..data -> ..2026_…           replaced by rename: the moment of the change
//	name -> ..data/name          one per first element of a path
//
// It may be interrupted anywhere; the next one goes on from what it finds.
type atomicWriter struct {
	root  *os.Root
	files payload
	group *int64 // of everything in the volume: the pod's fsGroup; nil: the agent's own
	log   *slog.Logger

	data string // the directory that ..data names, "" for none
}

// writeStep is a part of the work after which the volume shows one payload or the other, and after which the writer may be interrupted.
type writeStep struct {
	name string
	do   func() error
}

// writeAtomically makes dir, which must exist, show the files. It reports whether what it showed was another; if not, nothing is
// replaced, so that watchers of the files stay quiet.
func writeAtomically(dir string, files payload, group *int64, log *slog.Logger) (changed bool, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false, err
	}
	defer root.Close()
	w := &atomicWriter{root: root, files: files, group: group, log: log}
	changed = !w.isCurrent()
	for _, s := range w.steps(changed) {
		if err := s.do(); err != nil {
			return false, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return changed, nil
}

// steps returns the work in order: all of it, or, when the payload is shown already, only what an interrupted writer may have left to do.
func (w *atomicWriter) steps(replace bool) []writeStep {
	var steps []writeStep
	if replace {
		steps = []writeStep{{"write files", w.writeFiles}, {"prepare link", w.prepareLink}, {"replace link", w.replaceLink}}
	}
	return append(steps, []writeStep{
		{"make links", w.makeLinks}, {"remove stale links", w.removeStaleLinks}, {"remove old files", w.removeOldFiles},
	}...)
}

// isCurrent reports whether ..data shows the payload: the same paths with the same contents and modes.
func (w *atomicWriter) isCurrent() bool {
	name, err := w.root.Readlink(dataLink)
	if err != nil {
		return false
	}
	data, err := w.root.OpenRoot(name)
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
		c, ok := w.files[name]
		st, err := d.Info()
		if err != nil {
			return err
		}
		if !ok || st.Mode() != w.modeOf(c) || st.Size() != int64(len(c.data)) {
			return errDiffers
		}
		have, err := data.ReadFile(name)
		if err != nil {
			return err
		}
		if !bytes.Equal(have, c.data) {
			return errDiffers
		}
		seen++
		return nil
	})
	return err == nil && seen == len(w.files)
}

var errDiffers = errors.New("differs")

// modeOf returns the mode of a file on disk: the group of the pod may read what its owner may.
func (w *atomicWriter) modeOf(c content) fs.FileMode {
	if w.group == nil {
		return c.mode.Perm()
	}
	return c.mode.Perm() | 0o440
}

// own gives the path its owner and group. A filesystem that refuses does not fail the volume.
func (w *atomicWriter) own(name string, owner *int64) {
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
	if err := w.root.Lchown(name, uid, gid); err != nil {
		w.log.Warn("a volume's file keeps its owner", "path", path.Join(w.root.Name(), name), "uid", uid, "gid", gid, "error", err)
	}
}

func (w *atomicWriter) writeFiles() error {
	name, err := w.makeDataDir()
	if err != nil {
		return err
	}
	if err := w.writeInto(name); err != nil {
		return errors.Join(err, w.root.RemoveAll(name))
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
	dirs := map[string]struct{}{dir: {}}
	for _, name := range slices.Sorted(maps.Keys(w.files)) {
		c := w.files[name]
		full := path.Join(dir, name)
		for parent := path.Dir(full); parent != dir; parent = path.Dir(parent) {
			dirs[parent] = struct{}{}
		}
		if err := w.root.MkdirAll(path.Dir(full), 0o755); err != nil {
			return err
		}
		if err := w.root.WriteFile(full, c.data, 0o600); err != nil {
			return err
		}
		w.own(full, c.owner)
		// By chmod, because of the umask, and after the change of owner, which clears bits.
		if err := w.root.Chmod(full, w.modeOf(c)); err != nil {
			return err
		}
	}
	mode := fs.FileMode(0o755)
	if w.group != nil {
		mode |= fs.ModeSetgid
	}
	for _, name := range slices.Sorted(maps.Keys(dirs)) {
		w.own(name, nil)
		if err := w.root.Chmod(name, mode); err != nil {
			return err
		}
	}
	return nil
}

func (w *atomicWriter) prepareLink() error {
	if err := w.root.RemoveAll(newDataLink); err != nil {
		return err
	}
	if err := w.root.Symlink(w.data, newDataLink); err != nil {
		return err
	}
	w.own(newDataLink, nil)
	return nil
}

func (w *atomicWriter) replaceLink() error { return w.root.Rename(newDataLink, dataLink) }

// firstElements returns the names by which the payload is seen in the volume's root.
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
		if err := w.root.Symlink(target, name); err != nil {
			return err
		}
		w.own(name, nil)
	}
	return nil
}

// removeEmptyDir removes a directory that was made for a subPath while the volume did not have the file.
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

// removeStaleLinks removes the links to files that the payload has no more, and nothing else.
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

// removeOldFiles removes earlier data directories, and whatever an interrupted writer left.
func (w *atomicWriter) removeOldFiles() error {
	return w.eachEntry(func(e fs.DirEntry) error {
		name := e.Name()
		if !strings.HasPrefix(name, reservedPrefix) || name == dataLink || name == w.data {
			return nil
		}
		return w.root.RemoveAll(name)
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
