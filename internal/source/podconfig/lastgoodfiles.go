package podconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/internal/checkpoint"
	"berth/internal/source/manifest"
)

// list reads the names of the records in the directory.
func (l *lastGood) list() error {
	entries, err := os.ReadDir(l.folder)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	stored := map[string][]string{}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") { // temporary file of an agent killed while writing
			if err := os.Remove(filepath.Join(l.folder, e.Name())); err != nil {
				return err
			}
			continue
		}
		key, _, ok := strings.Cut(e.Name(), "-")
		if ok && !e.IsDir() {
			stored[key] = append(stored[key], e.Name())
		}
	}
	for _, names := range stored {
		if len(names) > 1 { // an agent was killed between write and remove
			l.sortByAge(names)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stored = stored
	return nil
}

// sortByAge sorts the newest file last.
func (l *lastGood) sortByAge(names []string) {
	written := map[string]time.Time{}
	for _, name := range names {
		if fi, err := os.Lstat(filepath.Join(l.folder, name)); err == nil {
			written[name] = fi.ModTime()
		}
	}
	slices.SortFunc(names, func(a, b string) int { return written[a].Compare(written[b]) })
}

func (l *lastGood) read(path, name string) ([]manifest.Object, error) {
	b, err := os.ReadFile(filepath.Join(l.folder, name))
	if err != nil {
		var pathErr *os.PathError
		if errors.As(err, &pathErr) {
			err = pathErr.Err
		}
		return nil, err
	}
	var r lastGoodRecord
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("invalid JSON: %w", err)
	}
	if r.Version != keptVersion {
		return nil, fmt.Errorf("it has version %d of the form, and this program knows version %d", r.Version, keptVersion)
	}
	if r.Path != path || r.Source != l.source {
		return nil, fmt.Errorf("it is of another manifest: %s", r.Path)
	}
	return l.decoder.Restore(manifest.Origin{Source: l.source, Path: path}, r.Documents)
}

// setAside renames an unusable record, for inspection. It is removed with the manifest's next
// record.
func (l *lastGood) setAside(key, name string) error {
	aside, err := checkpoint.SetAside(filepath.Join(l.folder, name))
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	names := slices.Clone(l.stored[key])
	if i := slices.Index(names, name); i >= 0 {
		names[i] = filepath.Base(aside)
	}
	l.stored[key] = names
	return nil
}

// flush writes the pending records. Failed ones stay pending.
func (l *lastGood) flush() error {
	l.mu.Lock()
	pending := maps.Clone(l.pending)
	l.mu.Unlock()
	if len(pending) == 0 {
		return nil
	}
	if err := os.MkdirAll(l.folder, 0o700); err != nil {
		return err
	}
	var failed error
	for key, r := range pending {
		l.mu.Lock()
		stored := l.stored[key]
		l.mu.Unlock()
		left, err := l.put(r, stored)
		if err != nil {
			failed = err // one is enough: they share the cause
		}
		l.mu.Lock()
		if len(left) == 0 {
			delete(l.stored, key)
		} else {
			l.stored[key] = left
		}
		if err == nil && l.pending[key] == r {
			delete(l.pending, key)
		}
		l.mu.Unlock()
	}
	return failed
}

// put writes the record and removes the manifest's other ones. It returns the names of the
// remaining files.
func (l *lastGood) put(r *lastGoodRecord, stored []string) (left []string, err error) {
	if len(r.Documents) > 0 && !slices.Contains(stored, r.name) {
		b, err := json.Marshal(r)
		if err != nil {
			return stored, err
		}
		// Mode 0600: manifests may hold secrets.
		if err := checkpoint.WriteWarm(filepath.Join(l.folder, r.name), 0o600, b); err != nil {
			return stored, err
		}
	}
	var errs []error
	for _, name := range stored {
		if len(r.Documents) > 0 && name == r.name {
			continue
		}
		if err := os.Remove(filepath.Join(l.folder, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
			left = append(left, name)
		}
	}
	if len(r.Documents) > 0 {
		left = append(left, r.name)
	}
	return left, errors.Join(errs...)
}
