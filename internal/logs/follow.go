package logs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// followPeriod is how often the world is asked for what no event tells: the container's end without Options.Exited, and the
// file's growth where inotify is not to be had (its instances are few per user).
const followPeriod = time.Second

// follow prints the log until the container has ended.
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
		// What was written before the container ended is in the file by now, so that one more round prints the last of it.
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

// ended reports whether the container has ended, by the best source that there is.
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

// catchUp prints all there is: the rest of the open file, then the files that took its place.
func (r *reader) catchUp(ctx context.Context) error {
	for {
		// The path is looked at before the file is drained: when another file grows there, the runtime has let go of ours, and
		// what is drained then is all that ours will ever hold.
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
		if err := r.finish(); err != nil {
			next.Close()
			return err
		}
		r.lines.file.Close()
		r.lines.file, r.long = next, longLine{}
		r.lines.seek(0)
	}
}

// successor returns the opened file that a rotation has put in the place of ours, or nil. A path without a file is a rotation half
// way; so is one with an empty file, because the runtime makes the new file before it stops to write to the old one. A file that
// became shorter was emptied in place, and is read from its beginning.
func (r *reader) successor() (*os.File, error) {
	ours, err := r.lines.file.Stat()
	if err != nil {
		return nil, err
	}
	if ours.Size() < r.lines.offset {
		r.lines.seek(0)
		r.long = longLine{}
	}
	next, err := Open(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	there, err := next.Stat()
	if err != nil || os.SameFile(ours, there) || there.Size() == 0 {
		return nil, errors.Join(err, next.Close())
	}
	return next, nil
}

// watchFile watches the directory that holds the log, because a file's own watch goes with the file at a rotation. It returns nil
// where inotify has no instance left.
func (r *reader) watchFile() *dirWatch {
	w, err := r.options.Watches.watch(filepath.Dir(r.lines.file.Name())) // where a link of Docker's leads
	if err != nil {
		return nil
	}
	return w
}
