// Package keep keeps what the agent would rather not find out again in small files, which are written behind its back.
//
// Owns: the form of such a file, when it is written, and what becomes of one that cannot be read.
// Reads: the file, once, at the start.
// Never: syncs to the disk. A file survives the end of the agent in whatever way; a power cut that it does not survive ends the containers that it tells of too.
package keep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

const (
	// pause is the least time between two writes: what changes meanwhile is one write.
	pause = time.Second
	// retry is the time after a write that failed before the next.
	retry = 10 * time.Second
)

// CorruptSuffix is what is appended to the name of a file that cannot be read.
const CorruptSuffix = ".corrupt"

// Config is what a File is made from.
type Config[T any] struct {
	// Path is the file's place; "" keeps nothing. Its folder must exist when Run begins.
	Path string
	// Version is that of the content's form. A file of another one cannot be read.
	Version int
	// What names the content in the log and in errors: "verdicts of probes".
	What string
	// Content returns what is to be written. It is called from one goroutine.
	Content func() (T, error)
	Log     *slog.Logger
}

// File is one document on disk, JSON with a version. Changed may be called by anybody, the rest by the owner.
type File[T any] struct {
	Config[T]
	changed chan struct{}      // capacity 1: the file is older than the content
	wanted  chan chan struct{} // of those that wait for a write; each is closed when one that began later was tried
}

// New returns a File. It does no I/O.
func New[T any](cfg Config[T]) *File[T] {
	return &File[T]{Config: cfg, changed: make(chan struct{}, 1), wanted: make(chan chan struct{})}
}

// document is the file's form.
type document[T any] struct {
	Version int `json:"version"`
	Content T   `json:"content"`
}

// Load returns what an earlier agent kept, nothing if there is no file. A file that cannot be read is set aside, and is the error, which
// says so: the agent goes on without it.
func (f *File[T]) Load() (T, error) {
	var none T
	if f.Path == "" {
		return none, nil
	}
	b, err := os.ReadFile(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	var d document[T]
	if err == nil {
		err = json.Unmarshal(b, &d)
	}
	if err == nil && d.Version != f.Version {
		err = fmt.Errorf("version: %d is not known, %d is", d.Version, f.Version)
	}
	if err == nil {
		return d.Content, nil
	}
	aside := f.Path + CorruptSuffix
	if moved := os.Rename(f.Path, aside); moved != nil {
		return none, fmt.Errorf("%s from before are lost: %s: %w", f.What, f.Path, errors.Join(err, moved))
	}
	return none, fmt.Errorf("%s from before are lost: %s: %w; the file is kept as %s", f.What, f.Path, err, aside)
}

// Changed says that the content is another one now. It does not block.
func (f *File[T]) Changed() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// Write has the content written as it is now, and waits until that was tried: what is told to others must not be older in the file. A write
// that fails is tried again by Run, which must run. It ends early when ctx is done.
func (f *File[T]) Write(ctx context.Context) {
	done := make(chan struct{})
	select {
	case f.wanted <- done:
	case <-ctx.Done():
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Run writes the file when the content has changed, at most once a second unless Write asks for it, and once more at the end. It blocks until ctx is done.
func (f *File[T]) Run(ctx context.Context) error {
	failing := false
	changed, wait := f.changed, time.NewTimer(pause)
	wait.Stop()
	defer wait.Stop()
	for ctx.Err() == nil {
		var waiting []chan struct{}
		select {
		case <-ctx.Done():
			continue
		case <-wait.C:
			changed = f.changed
			continue
		case <-changed:
		case done := <-f.wanted:
			waiting = f.everybody(done)
			select {
			case <-f.changed: // which is written now
			default:
			}
		}
		next, err := pause, f.write()
		for _, done := range waiting {
			close(done)
		}
		if err != nil {
			if !failing {
				f.Log.Warn(f.What+" are not kept, and will be tried again", "error", err, "retry", retry)
			}
			f.Changed()
			next = retry
		}
		failing = err != nil
		changed = nil // until the pause is over
		wait.Reset(next)
	}
	select {
	case <-f.changed:
		if err := f.write(); err != nil {
			f.Log.Warn(f.What+" are not kept", "error", err)
		}
	default:
	}
	return ctx.Err()
}

// everybody returns the first and all others that wait for a write.
func (f *File[T]) everybody(first chan struct{}) []chan struct{} {
	waiting := []chan struct{}{first}
	for {
		select {
		case done := <-f.wanted:
			waiting = append(waiting, done)
		default:
			return waiting
		}
	}
}

// write replaces the file in one step: a reader sees the old content or the new.
func (f *File[T]) write() (err error) {
	if f.Path == "" {
		return nil
	}
	content, err := f.Content()
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	b, err := json.Marshal(document[T]{Version: f.Version, Content: content})
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	t, err := os.CreateTemp(filepath.Dir(f.Path), "."+filepath.Base(f.Path)+"-") // with mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(t.Name()))
		}
	}()
	_, err = t.Write(b)
	if err := errors.Join(err, t.Close()); err != nil {
		return err
	}
	return os.Rename(t.Name(), f.Path)
}
