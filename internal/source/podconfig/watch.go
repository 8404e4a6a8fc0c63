package podconfig

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/host/inotify"
)

// Watcher reports changes of directories and their entries, not of subdirectories.
type Watcher interface {
	// Add watches the directory. The error wraps fs.ErrNotExist if it does not exist. Adding a
	// directory twice is no error.
	Add(folder string) error
	// Remove stops the watch. It is no error if the watch has already stopped because its directory
	// was removed.
	Remove(folder string) error
	// Events is closed when the watcher has failed or is closed.
	Events() <-chan inotify.Event
	// Close stops all watches and returns when the watcher's goroutines have exited.
	Close() error
}

// WatchFunc opens a watcher.
type WatchFunc func() (Watcher, error)

// interest is why a directory is watched.
type interest struct {
	// roots list the directory: each visible entry may be a manifest.
	roots []*root
	// names are entries on the way to something else: a symbolic link, its target, a missing path.
	// The roots are those that consist of the entry alone.
	names map[string][]*root
}

// interests maps watched directories, by their path without links, to the reasons.
type interests map[string]*interest

func (in interests) folder(path string) *interest {
	if in[path] == nil {
		in[path] = &interest{names: map[string][]*root{}}
	}
	return in[path]
}

func (in interests) addPlaces(places []place) {
	for _, p := range places {
		names := in.folder(p.folder).names
		if _, known := names[p.name]; !known {
			names[p.name] = nil
		}
	}
}

// watches are the currently watched directories.
type watches struct {
	log    *slog.Logger
	w      Watcher // nil: nothing can be watched
	active map[string]folderID
	failed map[string]struct{} // directories whose failure was logged
}

// ensure watches exactly the directories of the interests and returns how many watches are new. A
// replaced directory is watched again. Failures are logged once per directory; the rescan
// compensates for missing events.
func (ws *watches) ensure(in interests) int {
	if ws.w == nil {
		return 0
	}
	for folder, id := range ws.active {
		if now, err := folderIDOf(folder); in[folder] != nil && err == nil && now == id {
			continue
		}
		if err := ws.w.Remove(folder); err != nil {
			ws.log.Debug("cannot end a watch", "folder", folder, "error", err)
		}
		delete(ws.active, folder)
	}
	added := 0
	for folder := range in {
		if _, ok := ws.active[folder]; ok {
			continue
		}
		// Identify it before it is added: if it is replaced in between, the identity is the old
		// one, and the next ensure corrects it.
		id, err := folderIDOf(folder)
		if err == nil {
			err = ws.w.Add(folder)
		}
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			if _, known := ws.failed[folder]; !known {
				ws.failed[folder] = struct{}{}
				ws.log.Warn("cannot watch a folder of manifests; its changes are seen at the next rescan only",
					"folder", folder, "error", err)
			}
			continue
		}
		delete(ws.failed, folder)
		ws.active[folder] = id
		added++
	}
	return added
}

// folderID distinguishes a directory from its replacement, which may have the same inode.
type folderID struct {
	major, minor uint32
	inode        uint64
	made         unix.StatxTimestamp // zero if the file system does not record it
}

// folderIDOf returns the identity of the directory at the path, following links.
func folderIDOf(path string) (folderID, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return folderID{}, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	id := folderID{major: st.Dev_major, minor: st.Dev_minor, inode: st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.made = st.Btime
	}
	return id, nil
}

// place is an entry of a directory; the directory's path has no links in it.
type place struct{ folder, name string }

// maxLinks limits the symbolic links of a path (the kernel's limit, path_resolution(7)).
const maxLinks = 40

// resolve walks the absolute path as the kernel does. It returns every place whose change can
// change the result without an event in the target's own directory: each link, and the end of the
// walk (the target, or the first missing entry). target is the path without links. ok is false if
// the path does not exist.
func resolve(path string) (places []place, target string, ok bool) {
	cur, rest, links := "/", split(path), 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case ".":
			continue
		case "..":
			cur = filepath.Dir(cur)
			continue
		}
		next := filepath.Join(cur, name)
		fi, err := os.Lstat(next)
		if err != nil {
			return append(places, place{cur, name}), "", false
		}
		if fi.Mode()&os.ModeSymlink == 0 {
			cur = next
			continue
		}
		places = append(places, place{cur, name})
		to, err := os.Readlink(next)
		if links++; err != nil || links > maxLinks {
			return places, "", false
		}
		if filepath.IsAbs(to) {
			cur = "/"
		}
		rest = append(split(to), rest...)
	}
	return append(places, place{filepath.Dir(cur), filepath.Base(cur)}), cur, true
}

// split returns the elements of the path. filepath.Clean would be wrong here: "link/.." is not ".".
func split(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}
