package auth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"berth/internal/checkpoint"
	"berth/internal/host/inotify"
)

// RulesFile is the rules file. Each use checks it for changes, which takes two microseconds, so
// that a change applies to the next request. For requests in progress, its directory is watched
// (watch).
type RulesFile struct {
	path string
	log  *slog.Logger

	mu       sync.Mutex
	rules    Rules       // guarded by mu; the last valid ones
	seen     os.FileInfo // guarded by mu; of the last read; nil forces a read
	read     bool        // guarded by mu
	err      error       // guarded by mu; of the last read
	watchErr error       // guarded by mu; why the file is not watched
}

// NewRulesFile returns the rules of a file. Without the file, only the built-in rules apply.
func NewRulesFile(path string, log *slog.Logger) *RulesFile { return &RulesFile{path: path, log: log} }

// settled is the minimum age of a file's modification time that distinguishes it from a later
// change.
const settled = time.Second

// Rules returns the rules in force: those of the file or, if it is invalid, the last valid ones.
func (f *RulesFile) Rules() Rules {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refresh()
	return f.rules
}

// Health returns the error of the file or of its watch; nil if there is none.
func (f *RulesFile) Health() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refresh()
	return errors.Join(f.err, f.watchErr)
}

// written is the delay between a change and the read of the file, so that a write in place is
// complete.
const written = 100 * time.Millisecond

// Watcher reports changes of files in directories.
type Watcher interface {
	Add(folder string) error
	// Events returns a channel that is closed when the watcher stops.
	Events() <-chan inotify.Event
	Close() error
}

func openInotify() (Watcher, error) { return inotify.Open() }

// watch calls changed after each change of the file, until the context is done. open opens the
// watcher.
func (f *RulesFile) watch(ctx context.Context, open func() (Watcher, error), changed func()) error {
	w, err := open()
	if err != nil {
		return f.awaitUnwatched(ctx, err)
	}
	defer func() { _ = w.Close() }()
	dir := filepath.Dir(f.path)
	path := filepath.Join(dir, filepath.Base(f.path))
	if err := w.Add(dir); err != nil {
		return f.awaitUnwatched(ctx, err)
	}
	changed() // changes before the watch were not reported
	timer := time.NewTimer(written)
	defer timer.Stop()
	for {
		select {
		case e, ok := <-w.Events():
			switch {
			case !ok || e.Path == dir && (e.Deleted || e.Moved):
				return f.awaitUnwatched(ctx, fmt.Errorf("the folder %s is no longer watched", dir))
			case e.Path == path || e.Err != nil:
				timer.Reset(written)
			}
		case <-timer.C:
			changed()
		case <-ctx.Done():
			return nil
		}
	}
}

// awaitUnwatched waits for the context, as changes are no longer reported. Health reports err.
func (f *RulesFile) awaitUnwatched(ctx context.Context, err error) error {
	err = fmt.Errorf("rules of the local API: requests under way go on when %s takes their right away, until Berth is restarted: %w", f.path, err)
	f.log.Error("the rules of the local API are not watched", "error", err)
	f.mu.Lock()
	f.watchErr = err
	f.mu.Unlock()
	<-ctx.Done()
	return nil
}

// refresh reads the file if it has changed. mu is held.
func (f *RulesFile) refresh() {
	now, err := os.Stat(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if f.read && f.seen == nil && f.err == nil && f.rules == nil {
			return
		}
		now = nil
	case err == nil && f.seen != nil && os.SameFile(f.seen, now) && f.seen.ModTime().Equal(now.ModTime()) && f.seen.Size() == now.Size():
		return
	}
	rules, err := readRules(f.path)
	before := f.err
	f.err, f.seen = err, nil
	if now != nil && time.Since(now.ModTime()).Abs() > settled {
		f.seen = now
	}
	switch {
	case err == nil:
		if f.read && !slices.EqualFunc(f.rules, rules, Rule.same) || before != nil {
			f.log.Info("rules of the local API read again", "file", f.path, "rules", len(rules))
		}
		f.rules, f.read = rules, true
	case before == nil || before.Error() != err.Error():
		f.log.Warn("rules of the local API not read; the last good ones stay in force", "error", err)
	}
}

// readRules reads the file; a missing file has no rules.
func readRules(path string) (Rules, error) {
	content, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("rules of the local API: %w", err)
	}
	return parseRules(path, content)
}

func (r Rule) same(other Rule) bool {
	for _, field := range ruleFields {
		if !slices.Equal(*r.values(field), *other.values(field)) {
			return false
		}
	}
	return true
}

// addRule adds a rule to the file, unless it exists. It preserves comments.
func addRule(path string, r Rule) error {
	return changeRules(path, func(content []byte, rules Rules) ([]byte, error) {
		if slices.ContainsFunc(rules, r.same) {
			return content, nil
		}
		return withRule(content, r)
	})
}

// RemoveUser removes a user from the rules file, and rules for no other user or group with their
// comments. It returns how many rules named the user. Rules for the user's groups stay.
func RemoveUser(rulesPath, user string) (named int, err error) {
	err = changeRules(rulesPath, func(content []byte, _ Rules) (changed []byte, err error) {
		changed, named, err = withoutUser(content, user)
		return changed, err
	})
	return named, err
}

// changeRules replaces the content of the file by the result of change, unless it is the same.
// Concurrent changes by this program are serialized; after a concurrent edit, change is called
// again.
func changeRules(path string, change func(content []byte, rules Rules) ([]byte, error)) error {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // replace the target of a symlink
	}
	return locked(filepath.Dir(path), func() error {
		for {
			before, err := readIfThere(path)
			if err != nil {
				return err
			}
			rules, err := parseRules(path, before)
			if err != nil {
				return err
			}
			after, err := change(before, rules)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if bytes.Equal(before, after) {
				return nil
			}
			if _, err := parseRules(path, after); err != nil {
				return fmt.Errorf("the changed rules: %w", err)
			}
			now, err := readIfThere(path)
			if err != nil {
				return err
			}
			if bytes.Equal(before, now) {
				return checkpoint.Write(path, 0o600, after)
			}
		}
	})
}

// readIfThere returns the content of the file, empty if it does not exist.
func readIfThere(path string) ([]byte, error) {
	content, err := readBounded(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("rules of the local API: %w", err)
	}
	return content, nil
}
