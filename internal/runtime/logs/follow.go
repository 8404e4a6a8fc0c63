package logs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// followPeriod is the polling interval for changes without events: the container's exit without
// Options.Exited, and the file's growth without inotify (its instances are limited per user).
const followPeriod = time.Second

// follow prints the log until the container has exited.
func (r *reader) follow(ctx context.Context, running Running) error {
	changes := r.watchFile()
	defer changes.close()
	ended, err := r.ended(ctx, running)
	if err != nil {
		return err
	}
	var tick <-chan time.Time
	if changes == nil || (r.options.Exited == nil && running != nil) {
		ticker := time.NewTicker(followPeriod)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		// What was written before the container exited is in the file by now, so that one more
		// iteration prints the rest.
		if err := r.catchUp(ctx); err != nil {
			return err
		}
		if ended {
			return nil
		}
		select {
		case <-changes.events():
		case <-r.options.Exited:
			ended = true
		case <-tick:
			if ended, err = r.ended(ctx, running); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ended reports whether the container has exited, by Options.Exited or else running.
func (r *reader) ended(ctx context.Context, running Running) (bool, error) {
	if r.options.Exited != nil {
		select {
		case <-r.options.Exited:
			return true, nil
		default:
			return false, nil
		}
	}
	if running == nil {
		return true, nil
	}
	runs, err := running(ctx)
	if err != nil {
		return false, fmt.Errorf("ask whether the container runs: %w", err)
	}
	return !runs, nil
}

// catchUp prints everything available: the rest of the open file, then the files that replaced it.
func (r *reader) catchUp(ctx context.Context) error {
	for {
		// The path is checked before the file is drained: if another file exists there, the runtime
		// has released ours, and draining yields its final content.
		next, err := r.successor()
		if err != nil {
			return err
		}
		if err := r.drain(ctx); err != nil || next == nil {
			if next != nil {
				next.Close()
			}
			return err
		}
		if err := r.finishRotated(ctx); err != nil {
			next.Close()
			return err
		}
		r.lines.piece.Close()
		if next.stamp != (Stamp{}) {
			r.last = next.stamp
		}
		r.tail = nil // all later entries are newer
		if err := r.lines.enter(next, 0); err != nil {
			return err
		}
	}
}

// finishRotated prints what the runtime still wrote to our file after it created the next one.
func (r *reader) finishRotated(ctx context.Context) error {
	err := awaitClose(ctx, r.lines.piece, closeDelay)
	if err == nil {
		err = r.drain(ctx)
	}
	if err == nil {
		err = r.finish()
	}
	r.long = longLine{}
	return err
}

// successor returns the opened file that replaced ours in a rotation, or nil. A missing file at the
// path is a rotation in progress; so is an empty file, because the runtime creates the new file
// before it stops writing to the old one. A file that became shorter was truncated in place, and is
// read from its beginning.
func (r *reader) successor() (*piece, error) {
	ours, err := r.lines.piece.Stat()
	if err != nil {
		return nil, err
	}
	if !r.lines.piece.packed && ours.Size() < r.lines.offset {
		r.long, r.tail = longLine{}, nil
		if err := r.lines.enter(r.lines.piece, 0); err != nil {
			return nil, err
		}
	}
	live, err := openLive(r.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if live == nil {
		return r.nextPart(ours)
	}
	there, err := live.Stat()
	if err != nil || os.SameFile(ours, there) {
		return nil, errors.Join(err, live.Close())
	}
	// It is opened before parts are searched: if it is rotated meanwhile, it is one of them, or
	// still follows them.
	next, err := r.nextPart(ours)
	if err != nil || next != nil || there.Size() == 0 {
		return next, errors.Join(err, live.Close())
	}
	return live, nil
}

// nextPart opens the part that was rotated after our file, nil if there is none.
func (r *reader) nextPart(ours os.FileInfo) (*piece, error) {
	all, err := stamps(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	newer := slices.IndexFunc(all, func(s Stamp) bool { return s.Compare(r.last) > 0 })
	if newer < 0 {
		return nil, nil
	}
	all = all[newer:]
	if s, ok := findPart(r.path, all, ours); ok {
		r.last = s
		all = all[slices.Index(all, s)+1:]
	}
	for _, s := range all { // if ours was removed, all are newer
		p, err := openPart(r.path, s)
		if !errors.Is(err, fs.ErrNotExist) {
			return p, err
		}
	}
	return nil, nil
}

// watchFile watches the directory of the log, because a watch of the file itself is lost at a
// rotation. It returns nil if no inotify instance is available.
func (r *reader) watchFile() *dirWatch {
	w, err := r.options.Watches.watch(filepath.Dir(r.lines.piece.Name())) // the target of Docker's link
	if err != nil {
		return nil
	}
	return w
}
