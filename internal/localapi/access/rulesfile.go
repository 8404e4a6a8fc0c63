package access

import (
	"bytes"
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
)

// RulesFile is the file of rules. It is looked at when it is used, which costs two microseconds: a
// change holds from the next request on, and nothing watches the folder, where the objects of the
// local API are written too.
type RulesFile struct {
	path string
	log  *slog.Logger

	mu    sync.Mutex
	rules Rules       // guarded by mu; the last that were good
	seen  os.FileInfo // guarded by mu; of what was read last; nil is to be read again
	read  bool        // guarded by mu
	err   error       // guarded by mu; of what was read last
}

// NewRulesFile returns the rules of a file, which need not be there: then there are none but those
// that are built in.
func NewRulesFile(path string, log *slog.Logger) *RulesFile { return &RulesFile{path: path, log: log} }

// settled is how old a change of a file must be until its time tells it from the next change.
const settled = time.Second

// Rules returns those that hold: what the file has or, if that is broken, the last that were good.
func (f *RulesFile) Rules() Rules {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refresh()
	return f.rules
}

// Health is what is wrong with the file; nil if nothing is.
func (f *RulesFile) Health() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refresh()
	return f.err
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

// readRules reads the file; one that is not there has no rules.
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

// same says whether two rules are the same, wherever they stand.
func (r Rule) same(other Rule) bool {
	for _, field := range ruleFields {
		if !slices.Equal(*r.values(field), *other.values(field)) {
			return false
		}
	}
	return true
}

// addRule writes one more rule to the file, unless it is there. Comments of the file stay.
func addRule(path string, r Rule) error {
	return changeRules(path, func(content []byte, rules Rules) ([]byte, error) {
		if slices.ContainsFunc(rules, r.same) {
			return content, nil
		}
		return withRule(content, r)
	})
}

// RemoveUser takes a user out of the file of rules: rules that are for nobody else go, with their
// comments. It returns how many rules named the user. What its groups may, it may still.
func RemoveUser(rulesPath, user string) (named int, err error) {
	err = changeRules(rulesPath, func(content []byte, _ Rules) (changed []byte, err error) {
		changed, named, err = withoutUser(content, user)
		return changed, err
	})
	return named, err
}

// changeRules replaces the content of the file by what change makes of it, unless that is the same.
// Who does so at the same time by this program waits; where somebody has edited the file meanwhile,
// change is called again.
func changeRules(path string, change func(content []byte, rules Rules) ([]byte, error)) error {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // a link stays one
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

// readIfThere is the content of the file, which is empty if there is none.
func readIfThere(path string) ([]byte, error) {
	content, err := readBounded(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("rules of the local API: %w", err)
	}
	return content, nil
}
