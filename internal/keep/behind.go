package keep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
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

// behind writes a file behind the back of those who change what it keeps.
type behind struct {
	what   string
	log    *slog.Logger
	wake   <-chan struct{}    // has an element when the file is older than what is to be kept
	wanted chan chan struct{} // of those that wait for a write; each is closed when one that began later was tried
	write  func() error       // brings the file up to date

	mu      sync.Mutex
	failing *failing // guarded by mu; nil: the last write succeeded
}

// failing says what cannot be written, why, and since when.
type failing struct {
	error
	since time.Time
}

// Since returns when the first write failed.
func (f failing) Since() time.Time { return f.since }

// Unwrap returns the cause.
func (f failing) Unwrap() error { return f.error }

// Health returns what cannot be written, since when and why, or nil. Its error has a method
// Since() time.Time.
func (b *behind) Health() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failing == nil {
		return nil
	}
	return *b.failing
}

// note notes how a write ended.
func (b *behind) note(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err == nil:
		b.failing = nil
	case b.failing == nil:
		b.failing = &failing{fmt.Errorf("%s are not saved: %w", b.what, err), time.Now()}
	}
}

// Write has the content written as it is now, and waits until that was tried: what is told to others must not be older in the file. A write
// that fails is tried again by Run, which must run. It ends early when ctx is done.
func (b *behind) Write(ctx context.Context) {
	done := make(chan struct{})
	select {
	case b.wanted <- done:
	case <-ctx.Done():
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Run writes the file when the content has changed, at most once a second unless Write asks for it, and once more at the end. It blocks until ctx is done.
func (b *behind) Run(ctx context.Context) error {
	failing := false
	wake, wait := b.wake, time.NewTimer(pause)
	wait.Stop()
	defer wait.Stop()
	for ctx.Err() == nil {
		var waiting []chan struct{}
		select {
		case <-ctx.Done():
			continue
		case <-wait.C:
			wake = b.wake
			if !failing {
				continue
			}
		case <-wake:
		case done := <-b.wanted:
			waiting = b.everybody(done)
			select {
			case <-b.wake: // which is written now
			default:
			}
		}
		next, err := pause, b.write()
		b.note(err)
		for _, done := range waiting {
			close(done)
		}
		if err != nil {
			if !failing {
				b.log.Warn(b.what+" are not kept, and will be tried again", "error", err, "retry", retry)
			}
			next = retry
		}
		failing = err != nil
		wake = nil // until the pause is over
		wait.Reset(next)
	}
	select {
	case <-b.wake:
	default:
		if !failing {
			return ctx.Err()
		}
	}
	if err := b.write(); err != nil {
		b.log.Warn(b.what+" are not kept", "error", err)
	}
	return ctx.Err()
}

// everybody returns the first and all others that wait for a write.
func (b *behind) everybody(first chan struct{}) []chan struct{} {
	waiting := []chan struct{}{first}
	for {
		select {
		case done := <-b.wanted:
			waiting = append(waiting, done)
		default:
			return waiting
		}
	}
}

// document is a file's form.
type document[T any] struct {
	Version int `json:"version"`
	// Epoch is that of a Table.
	Epoch   string `json:"epoch,omitempty"`
	Content T      `json:"content"`
}

// replace writes the document in one step: a reader sees the old content or the new.
func replace[T any](path string, d document[T]) (err error) {
	b, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	t, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-") // with mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(t.Name()))
		}
	}()
	_, err = t.Write(append(b, '\n'))
	if err := errors.Join(err, t.Close()); err != nil {
		return err
	}
	return os.Rename(t.Name(), path)
}

// setAside moves a file that cannot be read out of the way and returns the error that says so.
func setAside(path, what string, err error) error {
	aside := path + CorruptSuffix
	if moved := os.Rename(path, aside); moved != nil {
		return fmt.Errorf("%s from before are lost: %s: %w", what, path, errors.Join(err, moved))
	}
	return fmt.Errorf("%s from before are lost: %s: %w; the file is kept as %s", what, path, err, aside)
}
