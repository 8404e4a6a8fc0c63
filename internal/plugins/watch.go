package plugins

import (
	"fmt"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// Event says that something happened to a path; what it is, the receiver finds out by looking.
type Event struct {
	Path string
	// Err is set when events were lost: everything has to be looked at again.
	Err error
}

// Watch reports changes of the entries of folders, sub-folders not included.
type Watch interface {
	// Add watches the folder. Adding one twice is no error.
	Add(folder string) error
	// Events is closed when nothing more can be reported.
	Events() <-chan Event
	// Close ends the watch and returns when its goroutines are gone.
	Close() error
}

// inotify is a Watch over the kernel's inotify.
type inotify struct {
	w      *fsnotify.Watcher
	events chan Event
	stop   chan struct{}
	done   sync.WaitGroup
}

// openInotify opens a Watch of this machine.
func openInotify() (Watch, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("open inotify: %w", err)
	}
	i := &inotify{w: w, events: make(chan Event), stop: make(chan struct{})}
	i.done.Go(i.forward)
	return i, nil
}

// forward turns the two channels of fsnotify into one.
func (i *inotify) forward() {
	defer close(i.events)
	for {
		var e Event
		select {
		case ev, ok := <-i.w.Events:
			if !ok {
				return
			}
			e.Path = ev.Name
		case err, ok := <-i.w.Errors:
			if !ok {
				return
			}
			e.Err = err
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

func (i *inotify) Add(folder string) error { return i.w.Add(folder) }

func (i *inotify) Events() <-chan Event { return i.events }

func (i *inotify) Close() error {
	close(i.stop)
	err := i.w.Close()
	i.done.Wait()
	return err
}
