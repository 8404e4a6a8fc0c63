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

// followPeriod is how often the world is asked for what no event tells: the container's end without
// Options.Exited, and the file's growth where inotify is not to be had (its instances are few per
// user).
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
		// What was written before the container ended is in the file by now, so that one more round
		// prints the last of it.
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
		// The path is looked at before the file is drained: when another file grows there, the
		// runtime has let go of ours, and what is drained then is all that ours will ever hold.
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
		if err := r.leave(ctx); err != nil {
			next.Close()
			return err
		}
		r.lines.Close()
		if next.stamp != (Stamp{}) {
			r.last = next.stamp
		}
		r.tail = nil // all that follows is newer
		if err := r.lines.enter(next, 0); err != nil {
			return err
		}
	}
}

// leave prints what the runtime still had in hand for our file when it began the next one.
func (r *reader) leave(ctx context.Context) error {
	err := awaitLetGo(ctx, r.lines.piece, letGo)
	if err == nil {
		err = r.drain(ctx)
	}
	if err == nil {
		err = r.finish()
	}
	r.long = longLine{}
	return err
}

// successor returns the opened file that rotations have put in the place of ours, or nil. A path
// without a file is a rotation half way; so is one with an empty file, because the runtime makes
// the new file before it stops to write to the old one. A file that became shorter was emptied in
// place, and is read from its beginning.
func (r *reader) successor() (*piece, error) {
	ours, err := r.lines.Stat()
	if err != nil {
		return nil, err
	}
	if !r.lines.packed && ours.Size() < r.lines.offset {
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
	// It is open before parts are looked for: if it is rotated meanwhile, it is one of them, or
	// still what comes after them.
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
	for _, s := range all { // without ours, which was removed, all are newer
		p, err := openPart(r.path, s)
		if !errors.Is(err, fs.ErrNotExist) {
			return p, err
		}
	}
	return nil, nil
}

// watchFile watches the directory that holds the log, because a file's own watch goes with the file
// at a rotation. It returns nil where inotify has no instance left.
func (r *reader) watchFile() *dirWatch {
	w, err := r.options.Watches.watch(filepath.Dir(r.lines.Name())) // where a link of Docker's leads
	if err != nil {
		return nil
	}
	return w
}
