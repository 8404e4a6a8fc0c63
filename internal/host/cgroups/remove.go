package cgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	lib "github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"berth/internal/pod"
)

var classes = [...]v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort}

// removeTries is how often a cgroup is removed whose killed processes have not left, removeRetry
// spaces the tries: 2.3 seconds in all.
const removeTries = 16

var removeRetry = wait.Backoff{Duration: time.Millisecond, Factor: 2, Cap: 300 * time.Millisecond, Steps: math.MaxInt}

// RemovePod removes the pod's cgroup with everything below it, after killing what still runs there.
// It blocks until the cgroup is gone, for 2.3 seconds at most and no longer than ctx; a pod without
// a cgroup is no error.
func (m *Manager) RemovePod(ctx context.Context, uid pod.UID) error {
	if uid == "" {
		// Without this, a pod without a UID would remove the cgroup "pod", which is nobody's.
		return errors.New("remove pod cgroup: the pod has no UID")
	}
	for _, class := range classes {
		if err := m.remove(ctx, podName(m.root, class, uid)); err != nil {
			return err
		}
	}
	m.mu.Lock()
	delete(m.pods, uid)
	m.mu.Unlock()
	return m.syncClasses()
}

func (m *Manager) remove(ctx context.Context, n name) error {
	dirs, err := m.dirs(n)
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", n.path(m.driver), err)
	}
	dirs = slices.DeleteFunc(dirs, func(d string) bool { return !lib.PathExists(d) })
	if len(dirs) == 0 {
		return nil
	}
	defer m.metrics.operated(destroy, time.Now())
	if err := untilGone(ctx, func() error { return killAndRemove(dirs) }); err != nil {
		return fmt.Errorf("remove cgroup %s: %w", n.path(m.driver), err)
	}
	if m.driver == Systemd {
		return m.stopUnit(n)
	}
	return nil
}

// stopUnit makes systemd forget the slice, which it keeps as a unit when its directory goes.
func (m *Manager) stopUnit(n name) error {
	g, err := m.open(n, podValues{})
	if err == nil {
		err = g.Destroy()
	}
	if err != nil {
		return fmt.Errorf("stop systemd unit %s: %w", n.unit(), err)
	}
	return nil
}

// killAndRemove kills all processes below the directories, then removes the directories. EBUSY
// means that some have not ended.
func killAndRemove(dirs []string) error {
	errs := []error{killAll(dirs)}
	for _, d := range dirs {
		errs = append(errs, removeTree(d))
	}
	return errors.Join(errs...)
}

// killAll kills all processes below the directories.
func killAll(dirs []string) error {
	var errs []error
	// Version 1: what is frozen does not fork away from its end, and must be thawed to meet it.
	for _, d := range dirs {
		errs = append(errs, freeze(d))
	}
	for _, d := range dirs {
		errs = append(errs, killIn(d))
	}
	for _, d := range dirs {
		errs = append(errs, thaw(d))
	}
	return errors.Join(errs...)
}

// freezerState is the file of the freezer controller of version 1. Processes of version 2 can be
// killed while they are frozen.
const freezerState = "freezer.state"

// freeze freezes what is below the directory, if it is one of the freezer's.
func freeze(dir string) error {
	file := filepath.Join(dir, freezerState)
	if !lib.PathExists(file) {
		return nil
	}
	if err := os.WriteFile(file, []byte(lib.Frozen), 0); err != nil && !gone(err) {
		return fmt.Errorf("freeze cgroup: %w", err)
	}
	return nil
}

// thaw thaws the directory and every cgroup below it: each may have been frozen by itself.
func thaw(dir string) error {
	if !lib.PathExists(filepath.Join(dir, freezerState)) {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			err = os.WriteFile(filepath.Join(path, freezerState), []byte(lib.Thawed), 0)
		}
		if err != nil && !gone(err) {
			return fmt.Errorf("thaw cgroup: %w", err)
		}
		return nil
	})
}

func killIn(dir string) error {
	// Version 2 since Linux 5.14: one write, and no process can fork out of it.
	if lib.WriteFile(dir, "cgroup.kill", "1") == nil {
		return nil
	}
	pids, err := lib.GetAllPids(dir)
	if err != nil && !gone(err) {
		return fmt.Errorf("list processes of %s: %w", dir, err)
	}
	for _, pid := range pids {
		// 0 stands for a process of a PID namespace that we cannot see, and would be our own
		// process group.
		if pid <= 0 || pid == os.Getpid() {
			continue
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d of %s: %w", pid, dir, err)
		}
	}
	return nil
}

// removeTree removes the cgroup directory after those below it. The files of a cgroup go with their
// directory and are never removed one by one.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read cgroup: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, removeTree(filepath.Join(dir, e.Name())))
		}
	}
	if err := unix.Rmdir(dir); err != nil && !gone(err) {
		errs = append(errs, &fs.PathError{Op: "rmdir", Path: dir, Err: err})
	}
	return errors.Join(errs...)
}

// gone reports whether the error says that the cgroup was removed: ENODEV comes from files of a
// cgroup that goes meanwhile.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// dirs returns the directories of the cgroup, one per hierarchy, existing or not.
func (m *Manager) dirs(n name) ([]string, error) {
	g, err := m.open(n, podValues{})
	if err != nil {
		return nil, err
	}
	return slices.Compact(slices.Sorted(maps.Values(g.GetPaths()))), nil
}

// List returns the pods that have a cgroup in any hierarchy, sorted, whoever made it.
func (m *Manager) List() ([]pod.UID, error) {
	uids := map[pod.UID]struct{}{}
	for _, class := range classes {
		found, err := m.listClass(class)
		if err != nil {
			return nil, err
		}
		for uid := range found {
			uids[uid] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(uids)), nil
}

// IsOccupied reports whether a process is in the pod's cgroup, or below it, in any hierarchy.
func (m *Manager) IsOccupied(uid pod.UID) (bool, error) {
	found, err := m.Processes(uid)
	return len(found) > 0, err
}

// listClass returns the directories of the pods' cgroups of a class, in every hierarchy.
func (m *Manager) listClass(class v1.PodQOSClass) (map[pod.UID][]string, error) {
	parent := qosName(m.root, class)
	dirs, err := m.dirs(parent)
	if err != nil {
		return nil, fmt.Errorf("list pod cgroups of %s: %w", parent.path(m.driver), err)
	}
	found := map[pod.UID][]string{}
	for _, d := range dirs {
		entries, err := os.ReadDir(d)
		if err != nil && !gone(err) {
			return nil, fmt.Errorf("list pod cgroups: %w", err)
		}
		for _, e := range entries {
			if uid, ok := uidOf(parent, e.Name(), m.driver); ok && e.IsDir() {
				found[uid] = append(found[uid], filepath.Join(d, e.Name()))
			}
		}
	}
	return found, nil
}
