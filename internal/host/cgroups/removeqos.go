package cgroups

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// RemoveQoS removes what EnsureQoS made, and the cgroup root unless it is the hierarchy's, as far
// as they are empty: pods of another agent, or processes that others put there, keep theirs.
// Idempotent.
func (m *Manager) RemoveQoS() error {
	names := []name{m.root.child(kubepods, bestEffort), m.root.child(kubepods, burstable), m.root.child(kubepods)}
	for n := m.root; len(n) > 0; n = n[:len(n)-1] {
		names = append(names, n)
	}
	for _, n := range names {
		dirs, err := m.dirs(n)
		if err != nil {
			return fmt.Errorf("remove cgroup %s: %w", n.path(m.driver), err)
		}
		used := false
		for _, d := range dirs {
			err := unix.Rmdir(d)
			switch {
			case err == nil, gone(err):
			case errors.Is(err, unix.EBUSY), errors.Is(err, unix.ENOTEMPTY):
				used = true
			default:
				return fmt.Errorf("remove cgroup: %w", &fs.PathError{Op: "rmdir", Path: d, Err: err})
			}
		}
		// Stopping a slice ends what is in it.
		if m.driver == Systemd && !used {
			if err := m.stopUnit(n); err != nil {
				return err
			}
		}
	}
	return nil
}
