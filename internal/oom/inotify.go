package oom

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/fsnotify/fsnotify"

	"berth/internal/cgroupstat"
)

// inotify watches memory.events of version 2, which is "modified" whenever a count in it changes (Documentation/admin-guide/cgroup-v2.rst).
type inotify struct {
	h    cgroupstat.Hierarchy
	w    *fsnotify.Watcher
	wake func(path string)
}

func newInotify(h cgroupstat.Hierarchy, wake func(string)) (*inotify, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch memory.events: %w", err)
	}
	return &inotify{h: h, w: w, wake: wake}, nil
}

// Add begins to watch the cgroup.
func (i *inotify) Add(path string) error {
	if err := i.w.Add(i.h.EventsFile(path)); err != nil {
		return fmt.Errorf("watch memory.events of %s: %w", path, err)
	}
	return nil
}

// Remove ends that.
func (i *inotify) Remove(path string) { _ = i.w.Remove(i.h.EventsFile(path)) } // it went with the cgroup, most often

// Run serves until ctx is done.
func (i *inotify) Run(ctx context.Context) error {
	defer i.w.Close()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err, ok := <-i.w.Errors:
			if !ok {
				return ctx.Err()
			}
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("watch memory.events: %w", err)
			}
			for _, file := range i.w.WatchList() { // which ones changed is lost
				i.wakeOf(file)
			}
		case e, ok := <-i.w.Events:
			if !ok {
				return ctx.Err()
			}
			if e.Has(fsnotify.Write) {
				i.wakeOf(e.Name)
			}
		}
	}
}

// wakeOf wakes for the cgroup that the file is in.
func (i *inotify) wakeOf(file string) {
	if rel, err := filepath.Rel(i.h.Dir("", "/"), filepath.Dir(file)); err == nil {
		i.wake("/" + rel)
	}
}
