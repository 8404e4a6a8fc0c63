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

// removeTries is the maximum number of tries to remove a cgroup whose killed processes have not
// exited; removeRetry is the back-off: 2.3 seconds in total.
const removeTries = 16

var removeRetry = wait.Backoff{Duration: time.Millisecond, Factor: 2, Cap: 300 * time.Millisecond, Steps: math.MaxInt}

// RemovePod kills the processes in the pod's cgroup, and removes it with its descendants. It blocks
// until the cgroup is removed, for at most 2.3 seconds and no longer than ctx; a pod without a
// cgroup is not an error.
func (m *Manager) RemovePod(ctx context.Context, uid pod.UID) error {
	if uid == "" {
		// An empty UID would remove the cgroup "pod".
		return errors.New("remove pod cgroup: the pod has no UID")
	}
	for _, class := range classes {
		if err := m.tree.remove(ctx, podName(m.tree.root, class, uid)); err != nil {
			return err
		}
	}
	m.mu.Lock()
	delete(m.pods, uid)
	m.mu.Unlock()
	return m.syncClasses()
}

func (t *tree) remove(ctx context.Context, n name) error {
	dirs, err := t.dirs(n)
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", n.path(t.driver), err)
	}
	dirs = slices.DeleteFunc(dirs, func(d string) bool { return !lib.PathExists(d) })
	if len(dirs) == 0 {
		return nil
	}
	defer t.metrics.operated(destroy, time.Now())
	if err := untilGone(ctx, func() error { return killAndRemove(dirs) }); err != nil {
		return fmt.Errorf("remove cgroup %s: %w", n.path(t.driver), err)
	}
	if t.driver == Systemd {
		return t.stopUnit(n)
	}
	return nil
}

// stopUnit stops the slice in systemd, which keeps the unit after its directory was removed.
func (t *tree) stopUnit(n name) error {
	g, err := t.open(n, podValues{})
	if err == nil {
		err = g.Destroy()
	}
	if err != nil {
		return fmt.Errorf("stop systemd unit %s: %w", n.unit(), err)
	}
	return nil
}

// killAndRemove kills all processes below the directories, then removes the directories. EBUSY
// means that some processes have not exited.
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
	// Version 1: frozen processes cannot fork while they are killed, and exit only once they are
	// thawed.
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

// freezerState is the file of the freezer controller of version 1. With version 2, frozen processes
// can be killed.
const freezerState = "freezer.state"

// freeze freezes the cgroup, if the directory is in the freezer hierarchy.
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

// thaw thaws the cgroup and all its descendants, each of which may have been frozen separately.
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
	// Version 2 since Linux 5.14: one write kills all processes, including forks.
	if lib.WriteFile(dir, "cgroup.kill", "1") == nil {
		return nil
	}
	pids, err := lib.GetAllPids(dir)
	if err != nil && !gone(err) {
		return fmt.Errorf("list processes of %s: %w", dir, err)
	}
	for _, pid := range pids {
		// 0 stands for a process in a PID namespace that is not visible, and kill(2) would signal
		// our own process group.
		if pid <= 0 || pid == os.Getpid() {
			continue
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d of %s: %w", pid, dir, err)
		}
	}
	return nil
}

// removeTree removes the cgroup directory after its descendants. The files of a cgroup are removed
// with their directory.
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

// gone reports whether the error means that the cgroup was removed: files of a cgroup that is being
// removed return ENODEV.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// dirs returns the directories of the cgroup, one per hierarchy; they need not exist.
func (t *tree) dirs(n name) ([]string, error) {
	g, err := t.open(n, podValues{})
	if err != nil {
		return nil, err
	}
	return slices.Compact(slices.Sorted(maps.Values(g.GetPaths()))), nil
}

// List returns the pods that have a cgroup in any hierarchy, sorted, including those of other
// agents.
func (m *Manager) List() ([]pod.UID, error) {
	uids := map[pod.UID]struct{}{}
	for _, class := range classes {
		found, err := m.tree.listClass(class)
		if err != nil {
			return nil, err
		}
		for uid := range found {
			uids[uid] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(uids)), nil
}

// IsOccupied reports whether the pod's cgroup or a descendant contains a process, in any hierarchy.
func (m *Manager) IsOccupied(uid pod.UID) (bool, error) {
	found, err := m.Processes(uid)
	return len(found) > 0, err
}

// listClass returns the directories of the pods' cgroups of a class, in every hierarchy.
func (t *tree) listClass(class v1.PodQOSClass) (map[pod.UID][]string, error) {
	parent := qosName(t.root, class)
	dirs, err := t.dirs(parent)
	if err != nil {
		return nil, fmt.Errorf("list pod cgroups of %s: %w", parent.path(t.driver), err)
	}
	found := map[pod.UID][]string{}
	for _, d := range dirs {
		entries, err := os.ReadDir(d)
		if err != nil && !gone(err) {
			return nil, fmt.Errorf("list pod cgroups: %w", err)
		}
		for _, e := range entries {
			if uid, ok := uidOf(parent, e.Name(), t.driver); ok && e.IsDir() {
				found[uid] = append(found[uid], filepath.Join(d, e.Name()))
			}
		}
	}
	return found, nil
}
