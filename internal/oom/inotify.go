package oom

import (
	"context"
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
	root := i.h.Dir("", "/")
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err, ok := <-i.w.Errors:
			if !ok {
				return ctx.Err()
			}
			return fmt.Errorf("watch memory.events: %w", err)
		case e, ok := <-i.w.Events:
			if !ok {
				return ctx.Err()
			}
			if rel, err := filepath.Rel(root, filepath.Dir(e.Name)); err == nil && e.Has(fsnotify.Write) {
				i.wake("/" + rel)
			}
		}
	}
}
