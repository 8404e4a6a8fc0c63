package podconfig

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host/inotify"
	"berth/internal/pod"
	"berth/internal/source/manifest"
)

const (
	// quiet is how long a path must have no events before it is read, and the minimum interval of
	// scans. A file is thus read once after its last write, and a thousand new files cost few
	// scans.
	quiet = 10 * time.Millisecond
	// patience limits how long events can delay a full scan.
	patience = 200 * time.Millisecond
	// maxLooks limits how often a scan is repeated because new directories had to be watched.
	maxLooks = 8
)

// fileSource reads manifests from files and directories. Events and timers only trigger scans; its
// state comes from scans alone. All fields from roots on belong to the goroutine of run.
type fileSource struct {
	log      *slog.Logger
	decode   func(from manifest.Origin, content []byte) manifest.Decoded
	lastGood *lastGood
	watch    WatchFunc
	rescan   time.Duration

	roots   []*root
	watches watches
	wanted  interests // as of the last scan

	touched    map[target]time.Time // entries with events, and the time of the last one
	lastAsked  time.Time            // last request of a full scan; zero: none is pending
	firstAsked time.Time            // first such request
	dirty      bool                 // something changed since the last hand-over
	handed     bool                 // a set was handed over
	complete   bool                 // a complete set was handed over
	unwatched  bool                 // the failure to open the watcher was logged
}

// root is one configured path.
type root struct {
	path     string
	files    fileList
	problems []manifest.Problem // of the path as a whole
	known    bool               // it was read completely at least once
}

// target is an entry of a root.
type target struct {
	root *root
	path string
}

func newFileSource(cfg Config, paths []string) (*fileSource, error) {
	d := manifest.Decoder{Node: cfg.NodeName, Names: cfg.Names, AllowUnknownFields: cfg.AllowUnknownFields}
	if cfg.KubeletLogs != "" {
		k := &kubeletPods{logs: cfg.KubeletLogs, log: cfg.Log}
		if cfg.StateDir != "" {
			k.file = filepath.Join(cfg.StateDir, kubeletUIDs)
		}
		d.Running = k.running
	}
	s := &fileSource{
		log: cfg.Log, decode: d.Decode, watch: cfg.Watch, rescan: cfg.Rescan,
		lastGood: newLastGood(cfg.StateDir, pod.FileSource, d, cfg.Log),
	}
	for _, p := range paths {
		// The path is part of the identity: an agent that restarts in another directory must
		// recognize its pods.
		abs, err := filepath.Abs(p)
		if err != nil {
			return nil, fmt.Errorf("path %q: %w", p, err)
		}
		s.roots = append(s.roots, &root{path: abs})
	}
	return s, nil
}

func (s *fileSource) run(ctx context.Context, handOver func(snapshot)) error {
	defer s.lastGood.open(ctx)()
	s.touched = map[target]time.Time{}
	s.openWatcher()
	defer s.closeWatcher()

	scanAndWatch := func(scan func(context.Context)) {
		if s.dirty {
			s.handOver(handOver) // without deleted files, which the scan may find again
		}
		scan(ctx)
		if ctx.Err() == nil && (s.dirty || !s.handed) {
			s.handOver(handOver)
		}
	}
	scanAndWatch(s.scanAll)

	rescan := time.NewTicker(s.rescan)
	defer rescan.Stop()
	var due <-chan time.Time // set while a request waits for its quiet time
	for ctx.Err() == nil {
		if due == nil && (len(s.touched) > 0 || !s.lastAsked.IsZero()) {
			due = time.After(quiet)
		}
		var events <-chan inotify.Event
		if s.watches.w != nil {
			events = s.watches.w.Events()
		}
		select {
		case <-ctx.Done():
		case e, ok := <-events:
			if !ok {
				s.log.Warn("the watcher of manifests has ended; it is opened again at the next rescan")
				s.closeWatcher()
				continue
			}
			s.note(e, time.Now())
		case <-due:
			due = nil
			scanAndWatch(s.scanTouched)
		case <-rescan.C:
			if s.watches.w == nil {
				s.openWatcher()
			}
			scanAndWatch(s.scanAll)
		}
	}
	return nil
}

func (s *fileSource) handOver(handOver func(snapshot)) {
	s.dirty, s.handed = false, true
	n := s.collect()
	handOver(n)
	if !n.partial && !s.complete {
		s.complete = true
		s.forgetDeparted()
	}
}

func (s *fileSource) openWatcher() {
	s.watches = watches{log: s.log, active: map[string]folderID{}, failed: map[string]struct{}{}}
	w, err := s.watch()
	if err != nil {
		if !s.unwatched { // once: it is retried at each rescan
			s.log.Warn("cannot watch manifests; changes are seen at the next rescan only", "rescan", s.rescan, "error", err)
		}
		s.unwatched = true
		return
	}
	s.watches.w, s.unwatched = w, false
}

func (s *fileSource) closeWatcher() {
	if s.watches.w == nil {
		return
	}
	if err := s.watches.w.Close(); err != nil {
		s.log.Debug("cannot close the watcher of manifests", "error", err)
	}
	s.watches.w = nil
}

// note records what an event asks to scan. A deleted manifest is dropped at once: a file that a
// scan finds in its place is another manifest, whatever its content.
// Differs from the kubelet: a manifest that is moved away is removed only if a scan finds no file
// in its place, since editors save files by moving them.
func (s *fileSource) note(e inotify.Event, now time.Time) {
	if e.Err != nil {
		s.log.Debug("events of manifests were lost; looking at everything", "error", e.Err)
		s.inspectAgain(now)
		return
	}
	if s.wanted[e.Path] != nil { // the directory itself was removed, moved or its mode changed
		s.inspectAgain(now)
	}
	folder, name := filepath.Split(e.Path)
	in := s.wanted[filepath.Clean(folder)]
	if in == nil {
		return
	}
	if e.Deleted {
		s.dropEntry(in, name)
	}
	if _, ok := in.names[name]; ok {
		s.inspectAgain(now)
		return
	}
	if isIgnored(name) {
		return
	}
	for _, r := range in.roots {
		s.touched[target{r, filepath.Join(r.path, name)}] = now
	}
}

// scanTouched scans entries that had events and have been quiet since.
func (s *fileSource) scanTouched(ctx context.Context) {
	now := time.Now()
	if !s.lastAsked.IsZero() && (now.Sub(s.lastAsked) >= quiet || now.Sub(s.firstAsked) >= patience) {
		s.scanAll(ctx)
		return
	}
	for t, last := range s.touched {
		if ctx.Err() != nil {
			return
		}
		if now.Sub(last) < quiet {
			continue
		}
		delete(s.touched, t)
		s.inspect(t.root, t.path)
		if f := t.root.files.at(t.path); f != nil && len(f.places) > 0 {
			s.inspectAgain(now) // a link: the directories on its way may have to be watched
		}
	}
}

// scanAll scans everything. Unchanged files are not read.
func (s *fileSource) scanAll(ctx context.Context) {
	s.lastAsked, s.firstAsked = time.Time{}, time.Time{}
	for range maxLooks {
		s.wanted = s.computeInterests()
		s.watches.ensure(s.wanted)
		for _, r := range s.roots {
			s.scanRoot(ctx, r)
		}
		if ctx.Err() != nil {
			return
		}
		// Changes between a scan and the watch of a directory have no event: scan again after a new
		// watch.
		s.wanted = s.computeInterests()
		if s.watches.ensure(s.wanted) == 0 {
			return
		}
	}
}

// computeInterests returns the directories whose events matter.
func (s *fileSource) computeInterests() interests {
	in := interests{}
	for _, r := range s.roots {
		places, path, ok := resolve(r.path)
		if ok {
			last := places[len(places)-1]
			places = places[:len(places)-1]
			if fi, err := os.Stat(path); err == nil && fi.IsDir() {
				// Its own events report its removal.
				in.folder(path).roots = append(in.folder(path).roots, r)
			} else {
				names := in.folder(last.folder).names
				names[last.name] = append(names[last.name], r)
			}
		}
		in.addPlaces(places)
		for _, f := range r.files {
			in.addPlaces(f.places)
		}
	}
	return in
}

func (s *fileSource) scanRoot(ctx context.Context, r *root) {
	fi, err := os.Stat(r.path)
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		s.setProblem(r, s.problem(r.path, manifest.SeverityWarning, "does not exist; it is read as soon as it does"))
		s.forget(r, nil)
		s.setKnown(r)
	case err != nil:
		s.setProblem(r, s.problem(r.path, manifest.SeverityError, "cannot be read: "+err.Error()))
	case fi.IsDir():
		entries, err := os.ReadDir(r.path)
		if err != nil {
			s.setProblem(r, s.problem(r.path, manifest.SeverityError, "cannot be listed: "+err.Error()))
			return
		}
		listed := make(map[string]struct{}, len(entries))
		complete := true
		var folders []string
		for _, e := range entries {
			if ctx.Err() != nil {
				return
			}
			path := filepath.Join(r.path, e.Name())
			if isIgnored(e.Name()) {
				continue
			}
			if e.IsDir() {
				folders = append(folders, path)
				continue
			}
			listed[path] = struct{}{}
			complete = s.inspect(r, path) && complete
		}
		s.setProblem(r, s.unreadFolders(r, folders)...)
		s.forget(r, listed)
		if complete {
			s.setKnown(r)
		}
	case fi.Mode().IsRegular():
		s.setProblem(r)
		complete := s.inspect(r, r.path)
		s.forget(r, map[string]struct{}{r.path: {}})
		if complete {
			s.setKnown(r)
		}
	default:
		s.setProblem(r, s.problem(r.path, manifest.SeverityError, irregular(fi)))
	}
}

// inspect updates one file of the root. It returns false if the file is being written: then the
// file keeps its state, and a full scan follows soon.
func (s *fileSource) inspect(r *root, path string) bool {
	old := r.files.at(path)
	f, isManifest, err := s.read(path, old)
	switch {
	case err != nil:
		s.inspectAgain(time.Now())
		return false
	case !isManifest:
		s.drop(r, path)
	case f != old:
		r.files.set(path, f)
		if old == nil || !old.Decoded.Equal(f.Decoded) {
			s.dirty = true
			s.lastGood.save(path, f.Objects)
		}
	}
	return true
}

// inspectAgain requests a full scan after the quiet time.
func (s *fileSource) inspectAgain(now time.Time) {
	if s.lastAsked.IsZero() {
		s.firstAsked = now
	}
	s.lastAsked = now
}
