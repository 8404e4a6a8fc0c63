package checkpoint

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	// pause is the minimum interval of writes, which merges changes.
	pause = time.Second
	// retry is the delay after a failed write.
	retry = 10 * time.Second
)

// WriterConfig is the configuration of a Writer.
type WriterConfig struct {
	// What names the content in the log and in errors: "verdicts of probes".
	What string
	// Wake has an element when the files are out of date.
	Wake <-chan struct{}
	// Write updates the files. It is called from one goroutine.
	Write func() error
	// Delay is the minimum delay of a change.
	Delay time.Duration
	Log   *slog.Logger
}

// Writer writes files asynchronously.
type Writer struct {
	cfg WriterConfig
	// wanted has a channel for each Flush, which is closed after a later write was tried.
	wanted chan chan struct{}

	mu      sync.Mutex
	failing *failing // guarded by mu; nil: the last write succeeded
}

// failing is a write error, with the time of the first one.
type failing struct {
	error
	since time.Time
}

// Since returns the time of the first failed write.
func (f failing) Since() time.Time { return f.since }

// Unwrap returns the cause.
func (f failing) Unwrap() error { return f.error }

// NewWriter returns a Writer. It does no I/O.
func NewWriter(cfg WriterConfig) *Writer {
	return &Writer{cfg: cfg, wanted: make(chan chan struct{})}
}

// Health returns the write error, or nil. The error has a method Since() time.Time. It is safe for
// concurrent use.
func (w *Writer) Health() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failing == nil {
		return nil
	}
	return *w.failing
}

// Flush writes the current content, and waits until that was tried: the file must not be older than
// what is reported to others. Run, which must be running, retries a failed write. Flush returns
// early when ctx is done.
func (w *Writer) Flush(ctx context.Context) {
	done := make(chan struct{})
	select {
	case w.wanted <- done:
	case <-ctx.Done():
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Run writes changed content, at most once a second unless Flush requests it, and once more at the
// end. It blocks until ctx is done.
func (w *Writer) Run(ctx context.Context) error {
	due := w.cfg.Wake      // nil: a write is scheduled
	var earliest time.Time // of the next write
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	for {
		var waiting []chan struct{}
		select {
		case <-ctx.Done():
			if due == nil || len(w.cfg.Wake) > 0 {
				_ = w.write() // it logs the failure
			}
			return ctx.Err()
		case <-due:
			due = nil
			timer.Reset(max(w.cfg.Delay, time.Until(earliest)))
			continue
		case <-timer.C:
		case done := <-w.wanted:
			waiting = w.waitingFlushes(done)
		}
		select {
		case <-w.cfg.Wake: // written now
		default:
		}
		err := w.write()
		for _, done := range waiting {
			close(done)
		}
		if err != nil {
			due = nil
			timer.Reset(retry)
			continue
		}
		due, earliest = w.cfg.Wake, time.Now().Add(pause)
		timer.Stop()
	}
}

// write writes and records the result. Only the first of consecutive failures is logged.
func (w *Writer) write() error {
	err := w.cfg.Write()
	w.mu.Lock()
	was := w.failing
	w.failing = nil
	if err != nil {
		w.failing = &failing{fmt.Errorf("%s not saved: %w", w.cfg.What, err), time.Now()}
		if was != nil {
			w.failing.since = was.since
		}
	}
	w.mu.Unlock()
	switch {
	case err != nil && was == nil:
		w.cfg.Log.Warn("not saved; it is tried again",
			"what", w.cfg.What, "error", err, "retry", retry)
	case err == nil && was != nil:
		w.cfg.Log.Info("saved again", "what", w.cfg.What)
	}
	return err
}

// waitingFlushes returns first and all other channels that wait for a write.
func (w *Writer) waitingFlushes(first chan struct{}) []chan struct{} {
	waiting := []chan struct{}{first}
	for {
		select {
		case done := <-w.wanted:
			waiting = append(waiting, done)
		default:
			return waiting
		}
	}
}
