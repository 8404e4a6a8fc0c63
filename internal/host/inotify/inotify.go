// Package inotify watches directories and files, and reports the paths that have changed. Once
// reports only the next write to a file.
//
// Owns: an inotify instance for each Watch, and for each Once.
// Reads: the kernel's events (inotify(7)).
// Never: accesses a path itself; the receiver must check what has changed.
package inotify

import (
	"errors"
	"fmt"
	"sync"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// Event is a change of a path.
type Event struct {
	// Path is the watched path or, in a directory, an entry of it, spelled as it was added.
	Path string
	// Written: the file was written to.
	Written bool
	// Deleted: the entry was deleted. Another one may have replaced it.
	Deleted bool
	// Moved: the entry was moved away. If it is the watched path itself, its watch has ended.
	Moved bool
	// Err is set if events were lost: the receiver must check everything again. It wraps
	// ErrOverflow if the kernel's queue was full.
	Err error
}

// ErrOverflow means that the kernel's event queue was full.
var ErrOverflow = fsnotify.ErrEventOverflow

// Watch reports changes of files, and of directories and their entries, not recursively.
type Watch struct {
	w      *fsnotify.Watcher
	events chan Event
	stop   chan struct{}
	once   sync.Once
	done   sync.WaitGroup
}

// Open opens a Watch without paths.
func Open() (*Watch, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("open inotify: %w", explain(err))
	}
	i := &Watch{w: w, events: make(chan Event), stop: make(chan struct{})}
	i.done.Go(i.forward)
	return i, nil
}

// forward merges the two channels of fsnotify.
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

// Add watches the directory or file. The error wraps fs.ErrNotExist if it does not exist. Adding a
// path twice is not an error.
func (i *Watch) Add(path string) error { return explain(i.w.Add(path)) }

// Watched returns the watched paths.
func (i *Watch) Watched() []string { return i.w.WatchList() }

// Remove stops the watch of a path. It is not an error if the watch has ended because its target
// was removed.
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

// Events returns the channel of events. It is closed when the watch has failed or was closed.
func (i *Watch) Events() <-chan Event { return i.events }

// Close stops all watches and returns when the goroutine has exited.
func (i *Watch) Close() error {
	i.once.Do(func() { close(i.stop) })
	err := i.w.Close()
	i.done.Wait()
	return err
}
