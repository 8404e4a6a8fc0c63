package cgroups

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// RemoveQoS removes the cgroups of EnsureQoS, and the cgroup root unless it is the hierarchy's, if
// they are empty: cgroups with pods of another agent or with other processes stay. It is
// idempotent.
func (m *Manager) RemoveQoS() error {
	names := []name{m.tree.root.child(kubepods, bestEffort), m.tree.root.child(kubepods, burstable), m.tree.root.child(kubepods)}
	for n := m.tree.root; len(n) > 0; n = n[:len(n)-1] {
		names = append(names, n)
	}
	for _, n := range names {
		dirs, err := m.tree.dirs(n)
		if err != nil {
			return fmt.Errorf("remove cgroup %s: %w", n.path(m.tree.driver), err)
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
		// Stopping a slice stops everything in it.
		if m.tree.driver == Systemd && !used {
			if err := m.tree.stopUnit(n); err != nil {
				return err
			}
		}
	}
	return nil
}
