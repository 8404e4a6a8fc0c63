package logs

import (
	"path/filepath"
	"sync"

	"berth/internal/host/inotify"
)

// Watches notify any number of followers of changes in directories. They share one inotify
// instance, which are limited per user (128, by default, for all of root's programs), and hold it
// only while there are followers. The zero value is ready for use; nil has no instance, and its
// followers poll once a second.
type Watches struct {
	mu     sync.Mutex
	shared *instance                         // guarded by mu; nil without followers
	dirs   map[string]map[*dirWatch]struct{} // guarded by mu
}

// dirWatch notifies one follower of changes in one directory. The nil watch never notifies.
type dirWatch struct {
	all     *Watches
	dir     string
	changed chan struct{} // capacity 1
}

// instance is an inotify instance, with the goroutine that reads its events.
type instance struct {
	*inotify.Watch
	listening sync.WaitGroup
}

// watch notifies of changes in the directory until the watch is closed.
func (w *Watches) watch(dir string) (*dirWatch, error) {
	if w == nil {
		return nil, nil
	}
	d, idle, err := w.add(dir)
	idle.close()
	return d, err
}

// add starts a watch; idle is an instance without followers.
func (w *Watches) add(dir string) (d *dirWatch, idle *instance, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shared == nil {
		watch, err := inotify.Open()
		if err != nil {
			return nil, nil, err
		}
		shared := &instance{Watch: watch}
		w.shared, w.dirs = shared, map[string]map[*dirWatch]struct{}{}
		shared.listening.Go(func() { w.forward(shared) })
	}
	// Also if others watch it: theirs may be of a directory that was deleted and recreated.
	if err := w.shared.Add(dir); err != nil {
		return nil, w.takeIdle(), err
	}
	d = &dirWatch{all: w, dir: dir, changed: make(chan struct{}, 1)}
	if w.dirs[dir] == nil {
		w.dirs[dir] = map[*dirWatch]struct{}{}
	}
	w.dirs[dir][d] = struct{}{}
	return d, nil, nil
}

// takeIdle removes and returns the instance if it has no followers. The caller holds mu.
func (w *Watches) takeIdle() (idle *instance) {
	if len(w.dirs) == 0 {
		idle, w.shared = w.shared, nil
	}
	return idle
}

// forward coalesces events into one wake-up per follower, so that a slow reader of a log does not
// back up the kernel's queue. An overflow of that queue wakes all.
func (w *Watches) forward(from *instance) {
	for e := range from.Events() {
		w.wake(from, func(dir string) bool { return e.Err != nil || dir == e.Path || dir == filepath.Dir(e.Path) })
	}
}

// wake wakes the followers of directories, if the instance is still theirs.
func (w *Watches) wake(from *instance, of func(dir string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shared != from {
		return
	}
	for dir, watches := range w.dirs {
		if !of(dir) {
			continue
		}
		for d := range watches {
			select {
			case d.changed <- struct{}{}:
			default:
			}
		}
	}
}

// forget removes a watch; idle is an instance without followers.
func (w *Watches) forget(d *dirWatch) (idle *instance) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.dirs[d.dir], d)
	if len(w.dirs[d.dir]) > 0 {
		return nil
	}
	delete(w.dirs, d.dir)
	if idle = w.takeIdle(); idle == nil {
		// The error is that the directory was deleted, together with its watch.
		_ = w.shared.Remove(d.dir)
	}
	return idle
}

func (d *dirWatch) events() <-chan struct{} {
	if d == nil {
		return nil
	}
	return d.changed
}

func (d *dirWatch) close() {
	if d != nil {
		d.all.forget(d).close()
	}
}

func (i *instance) close() {
	if i == nil {
		return
	}
	// It fails only if the watch is closed already, which this one is not.
	_ = i.Close()
	i.listening.Wait()
}
