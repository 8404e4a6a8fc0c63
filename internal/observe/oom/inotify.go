package oom

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"berth/internal/host/cgroupstat"
	"berth/internal/host/inotify"
)

// eventFiles watches memory.events of cgroup v2, which is "modified" whenever a counter in it
// changes (Documentation/admin-guide/cgroup-v2.rst).
type eventFiles struct {
	h    cgroupstat.Hierarchy
	w    *inotify.Watch
	wake func(path string)
}

func newEventFiles(h cgroupstat.Hierarchy, wake func(string)) (*eventFiles, error) {
	w, err := inotify.Open()
	if err != nil {
		return nil, fmt.Errorf("watch memory.events: %w", err)
	}
	return &eventFiles{h: h, w: w, wake: wake}, nil
}

// Add starts watching the cgroup.
func (f *eventFiles) Add(path string) error {
	if err := f.w.Add(f.h.EventsFile(path)); err != nil {
		return fmt.Errorf("watch memory.events of %s: %w", path, err)
	}
	return nil
}

// Remove stops watching the cgroup.
func (f *eventFiles) Remove(path string) { _ = f.w.Remove(f.h.EventsFile(path)) } // usually removed with the cgroup

// Run serves until ctx is done.
func (f *eventFiles) Run(ctx context.Context) error {
	defer f.w.Close()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-f.w.Events():
			switch {
			case !ok:
				return ctx.Err()
			case errors.Is(e.Err, inotify.ErrOverflow):
				for _, file := range f.w.Watched() { // the changed ones are unknown
					f.wakeOf(file)
				}
			case e.Err != nil:
				return fmt.Errorf("watch memory.events: %w", e.Err)
			case e.Written:
				f.wakeOf(e.Path)
			}
		}
	}
}

func (f *eventFiles) wakeOf(file string) {
	if rel, err := filepath.Rel(f.h.Dir("", "/"), filepath.Dir(file)); err == nil {
		f.wake("/" + rel)
	}
}
