package podconfig

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/internal/checkpoint"
	"berth/internal/pod"
	"berth/internal/source/manifest"
)

const (
	// keptVersion is the version of the record format.
	keptVersion = 1
	// keptDelay delays the write of a record, so that frequent changes cause one write.
	keptDelay = time.Second
	// keptSuffix is the file name suffix of a record.
	keptSuffix = ".json"
)

// orLastGood returns the effective objects of a manifest, given its old ones: while a part of it is
// rejected, old objects that it does not define now are kept, since the rejected part may define
// them.
// Differs from the kubelet: there the next full listing terminates the pod of a file that became
// invalid.
func orLastGood(old []manifest.Object, now manifest.Decoded) manifest.Decoded {
	now = refuseChanges(old, now)
	bad := now.Refusal()
	if bad < 0 {
		return now
	}
	defined := make(map[string]struct{}, len(now.Objects))
	for _, a := range now.Objects {
		defined[a.Key()] = struct{}{}
	}
	out := manifest.Decoded{Objects: slices.Clone(now.Objects), Problems: slices.Clone(now.Problems)}
	var retained []string
	for _, a := range old {
		if _, ok := defined[a.Key()]; !ok {
			out.Objects = append(out.Objects, a)
			retained = append(retained, strings.TrimPrefix(a.Key(), "Pod "))
		}
	}
	if len(retained) > 0 {
		names := strings.Join(retained[:min(len(retained), 3)], ", ")
		if len(retained) > 3 {
			names += fmt.Sprintf(" and %d more", len(retained)-3)
		}
		out.Problems[bad].Message += "; until this is mended the last good version stays: " + names
	}
	return out
}

// lastGood persists the accepted objects of each manifest of a source, so that a manifest that is
// invalid at the agent's start keeps its pods. Writes are asynchronous and without fsync: a power
// cut loses only records of pods whose containers it has terminated.
//
// Each record is a file. Its name is derived from the manifest's path and objects, so that a
// directory listing shows which records must be written: if nothing has changed, no record is read
// or written.
type lastGood struct {
	folder  string // "": nothing is persisted
	source  pod.Source
	decoder manifest.Decoder
	log     *slog.Logger
	wake    chan struct{} // capacity 1
	writer  *checkpoint.Writer
	listed  bool // set by open: the existing records are known

	mu      sync.Mutex
	stored  map[string][]string        // guarded by mu; file names by manifest key, newest last
	pending map[string]*lastGoodRecord // guarded by mu; records to be written by manifest key
}

// lastGoodRecord is the content of a record's file. Without documents, the record is removed.
type lastGoodRecord struct {
	Version int        `json:"version"`
	Source  pod.Source `json:"source"`
	Path    string     `json:"path"`
	// Documents are the accepted objects of the manifest, in canonical JSON.
	Documents []json.RawMessage `json:"documents"`

	name string // of the file
}

// newLastGood returns the store of the source's manifests in its own directory below dir; with an
// empty dir, it stores nothing.
func newLastGood(dir string, source pod.Source, d manifest.Decoder, log *slog.Logger) *lastGood {
	l := &lastGood{
		source: source, decoder: d, log: log, wake: make(chan struct{}, 1),
		stored: map[string][]string{}, pending: map[string]*lastGoodRecord{},
	}
	if dir != "" {
		l.folder = filepath.Join(dir, string(source))
	}
	l.writer = checkpoint.NewWriter(checkpoint.WriterConfig{
		What: "the last good versions of manifests", Wake: l.wake, Delay: keptDelay, Write: l.flush, Log: log,
	})
	return l
}

// open lists the records and starts the writer. The returned function writes pending records and
// stops the writer.
func (l *lastGood) open(ctx context.Context) (end func()) {
	if l.folder == "" {
		return func() {}
	}
	err := l.list()
	l.listed = err == nil
	if err != nil {
		l.log.Warn("cannot list the kept versions of manifests: one that is bad now loses its pods", "error", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var writer sync.WaitGroup
	writer.Go(func() { _ = l.writer.Run(ctx) }) // it returns ctx.Err()
	return func() {
		cancel()
		writer.Wait()
	}
}

// keyOf returns the part of a record's name that identifies its manifest.
func (l *lastGood) keyOf(path string) string {
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:16])
}

// save requests a write of the manifest's objects, unless they are stored already.
func (l *lastGood) save(path string, objects []manifest.Object) {
	if l.folder == "" {
		return
	}
	r := &lastGoodRecord{Version: keptVersion, Source: l.source, Path: path, name: l.nameOf(path, objects)}
	for _, a := range objects {
		r.Documents = append(r.Documents, a.Document)
	}
	key := l.keyOf(path)
	l.mu.Lock()
	defer l.mu.Unlock()
	_, busy := l.pending[key] // it may be in progress: stored is about to change
	stored := l.stored[key]
	if !busy && (len(objects) == 0 && len(stored) == 0 || len(objects) > 0 && len(stored) == 1 && stored[0] == r.name) {
		return
	}
	l.setPending(key, r)
}

// nameOf returns the file name of the record with these objects of the manifest.
func (l *lastGood) nameOf(path string, objects []manifest.Object) string {
	content := sha256.New()
	content.Write([]byte{keptVersion}) // a hash.Hash never returns an error
	for _, a := range objects {
		content.Write(a.Document)
		content.Write([]byte{'\n'})
	}
	return l.keyOf(path) + "-" + hex.EncodeToString(content.Sum(nil)[:16]) + keptSuffix
}

// differs reports whether the manifest has a record with other objects.
func (l *lastGood) differs(path string, objects []manifest.Object) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	stored := l.stored[l.keyOf(path)]
	return len(stored) > 0 && stored[len(stored)-1] != l.nameOf(path, objects)
}

// forget requests the removal of the manifest's record.
func (l *lastGood) forget(path string) { l.save(path, nil) }

// forgetOthers requests the removal of the records of all other manifests.
func (l *lastGood) forgetOthers(paths []string) {
	if l.folder == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range l.others(paths) {
		l.setPending(key, &lastGoodRecord{})
	}
}

// hasOthers reports whether there are records of other manifests, as far as known.
func (l *lastGood) hasOthers(paths []string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.others(paths)) > 0
}

// others returns the keys of the records of other manifests. l.mu is held.
func (l *lastGood) others(paths []string) []string {
	keys := maps.Clone(l.stored)
	for _, path := range paths {
		delete(keys, l.keyOf(path))
	}
	return slices.Collect(maps.Keys(keys))
}

// setPending queues the record and wakes the writer. l.mu is held.
func (l *lastGood) setPending(key string, r *lastGoodRecord) {
	l.pending[key] = r
	wake(l.wake)
}

// restore returns the stored objects of the manifest, or nothing if there is no record. An unusable
// record is moved aside.
func (l *lastGood) restore(path string) ([]manifest.Object, error) {
	key := l.keyOf(path)
	l.mu.Lock()
	pending, isPending := l.pending[key]
	stored := l.stored[key]
	l.mu.Unlock()
	switch {
	case isPending:
		return l.decoder.Restore(manifest.Origin{Source: l.source, Path: path}, pending.Documents)
	case len(stored) == 0:
		return nil, nil
	}
	name := stored[len(stored)-1]
	objects, err := l.read(path, name)
	if err == nil {
		return objects, nil
	}
	err = fmt.Errorf("the version kept of it is lost: %s cannot be used: %w", filepath.Join(l.folder, name), err)
	if !checkpoint.IsAside(name) {
		if asideErr := l.setAside(key, name); asideErr != nil {
			err = fmt.Errorf("%w; %w", err, asideErr)
		}
	}
	l.log.Warn("cannot restore a manifest", "manifest", path, "error", err)
	return nil, err
}
