// Package inotify watches folders and files: it tells which paths something happened to. Once tells
// of the next write to a file alone.
//
// Owns: an inotify instance for each Watch, and for each Once.
// Reads: the kernel's events (inotify(7)).
// Never: looks at a path itself; what happened to it, the receiver finds out by looking.
package inotify

import (
	"errors"
	"fmt"
	"sync"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// Event says that something happened to a path.
type Event struct {
	// Path is what is watched or, in a folder, an entry of it, spelled as it was added.
	Path string
	// Written: something was written to it.
	Written bool
	// Deleted: the entry was deleted. Another one may be in its place by now.
	Deleted bool
	// Moved: it was moved away. If it is what is watched, the watch of it has ended.
	Moved bool
	// Err is set when events were lost: everything has to be looked at again. It wraps ErrOverflow
	// when the kernel's queue was full.
	Err error
}

// ErrOverflow says that the kernel had more events than its queue takes.
var ErrOverflow = fsnotify.ErrEventOverflow

// Watch reports changes of files, and of folders and their entries, sub-folders not included.
type Watch struct {
	w      *fsnotify.Watcher
	events chan Event
	stop   chan struct{}
	once   sync.Once
	done   sync.WaitGroup
}

// Open opens a watch of nothing yet.
func Open() (*Watch, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("open inotify: %w", explain(err))
	}
	i := &Watch{w: w, events: make(chan Event), stop: make(chan struct{})}
	i.done.Go(i.forward)
	return i, nil
}

// forward turns the two channels of fsnotify into one.
func (i *Watch) forward() {
	defer close(i.events)
	for {
		var e Event
		select {
		case ev, ok := <-i.w.Events:
			if !ok {
				return
			}
			e = Event{Path: ev.Name, Written: ev.Has(fsnotify.Write), Deleted: ev.Has(fsnotify.Remove), Moved: ev.Has(fsnotify.Rename)}
		case err, ok := <-i.w.Errors:
			if !ok {
				return
			}
			e = Event{Err: err}
		case <-i.stop:
			return
		}
		select {
		case i.events <- e:
		case <-i.stop:
			return
		}
	}
}

// Add watches the folder or file. It wraps fs.ErrNotExist when there is none. Adding a path twice
// is no error.
func (i *Watch) Add(path string) error { return explain(i.w.Add(path)) }

// Watched returns the paths that are watched.
func (i *Watch) Watched() []string { return i.w.WatchList() }

// Remove ends the watch of a path; one that has ended by itself, because what it watched went away,
// is no error.
func (i *Watch) Remove(path string) error {
	if err := i.w.Remove(path); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) {
		return err
	}
	return nil
}

// explain names the limit behind the kernel's misleading error numbers (inotify_init(2),
// inotify_add_watch(2)).
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("%w (raise the sysctl fs.inotify.max_user_instances, or the limit of open files of the agent)", err)
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w (raise the sysctl fs.inotify.max_user_watches)", err)
	}
	return err
}

// Events is closed when nothing more can be reported.
func (i *Watch) Events() <-chan Event { return i.events }

// Close ends all watches and returns when the goroutine behind them is gone.
func (i *Watch) Close() error {
	i.once.Do(func() { close(i.stop) })
	err := i.w.Close()
	i.done.Wait()
	return err
}
