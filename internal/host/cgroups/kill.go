package cgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	lib "github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"berth/internal/pod"
)

// Process is a process in the cgroup of a pod.
type Process struct {
	PID int
	// Command is its command line, cut to 80 bytes; without one, its name in brackets.
	Command string
	// Container is the container of its cgroup, or "".
	Container pod.ContainerID
}

// KillPod kills the processes in the pod's cgroup and its descendants, and blocks until they have
// exited, for at most 2.3 seconds and no longer than ctx. An error names the processes that do not
// exit. A pod without a cgroup is not an error.
func (m *Manager) KillPod(ctx context.Context, uid pod.UID) error {
	dirs, err := m.tree.podDirs(uid)
	if err != nil {
		return fmt.Errorf("kill the processes of pod %s: %w", uid, err)
	}
	return killDirs(ctx, uid, dirs)
}

// KillContainer is KillPod for one container of a pod. The runtime creates its cgroup below the
// pod's, with the ID in its name.
func (m *Manager) KillContainer(ctx context.Context, uid pod.UID, id pod.ContainerID) error {
	if id == "" {
		return fmt.Errorf("kill a container of pod %s: it has no id", uid) // every name would match
	}
	pods, err := m.tree.podDirs(uid)
	if err != nil {
		return fmt.Errorf("kill the processes of container %s: %w", id, err)
	}
	var dirs []string
	for _, d := range pods {
		entries, err := os.ReadDir(d)
		if err != nil && !gone(err) {
			return fmt.Errorf("kill the processes of container %s: %w", id, err)
		}
		for _, e := range entries {
			if e.IsDir() && containerIn(e.Name()) == id {
				dirs = append(dirs, filepath.Join(d, e.Name()))
			}
		}
	}
	return killDirs(ctx, uid, dirs)
}

// podDirs returns the existing directories of the pod's cgroup.
func (t *tree) podDirs(uid pod.UID) ([]string, error) {
	if uid == "" {
		return nil, errors.New("the pod has no UID")
	}
	var out []string
	for _, class := range classes {
		dirs, err := t.dirs(podName(t.root, class, uid))
		if err != nil {
			return nil, err
		}
		out = append(out, slices.DeleteFunc(dirs, func(d string) bool { return !lib.PathExists(d) })...)
	}
	return out, nil
}

// killDirs kills the processes below the directories, which are of the pod's cgroup.
func killDirs(ctx context.Context, uid pod.UID, dirs []string) error {
	err := untilGone(ctx, func() error {
		if left, err := pidsIn(dirs); err != nil || len(left) == 0 {
			return err
		}
		if err := killAll(dirs); err != nil {
			return err
		}
		left, err := pidsIn(dirs)
		if err == nil && len(left) > 0 {
			err = unix.EBUSY
		}
		return err
	})
	if errors.Is(err, unix.EBUSY) {
		left, listed := pidsIn(dirs)
		return errors.Join(fmt.Errorf("pod %s: killed, but not ended: %s", uid, describe(processesOf(left))), listed)
	}
	return err
}

// untilGone retries do while it fails with EBUSY because killed processes have not exited,
// removeTries times at most.
func untilGone(ctx context.Context, do func() error) error {
	delay := removeRetry.DelayFunc()
	for try := 1; ; try++ {
		err := do()
		if err == nil || try == removeTries || !errors.Is(err, unix.EBUSY) {
			return err
		}
		select {
		case <-time.After(delay()):
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// Processes returns the processes in the pod's cgroup and its descendants, sorted by PID.
func (m *Manager) Processes(uid pod.UID) ([]Process, error) {
	dirs, err := m.tree.podDirs(uid)
	if err != nil {
		return nil, fmt.Errorf("processes of pod %s: %w", uid, err)
	}
	pids, err := pidsIn(dirs)
	return processesOf(pids), err
}

// pidsIn returns the processes below the directories with their containers.
func pidsIn(dirs []string) (map[int]pod.ContainerID, error) {
	out := map[int]pod.ContainerID{}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.IsDir() {
				return ignoreGone(err)
			}
			pids, err := lib.GetPids(path)
			for _, pid := range pids {
				out[pid] = containerOf(path)
			}
			return ignoreGone(err)
		})
		if err != nil {
			return nil, fmt.Errorf("list processes of %s: %w", dir, err)
		}
	}
	return out, nil
}

func processesOf(pids map[int]pod.ContainerID) []Process {
	var out []Process
	for _, pid := range slices.Sorted(maps.Keys(pids)) {
		out = append(out, Process{PID: pid, Command: command(pid), Container: pids[pid]})
	}
	return out
}

func ignoreGone(err error) error {
	if gone(err) {
		return nil
	}
	return err
}

const idDigits = 64

// containerOf returns the container of the cgroup directory or its nearest ancestor; "" if there is
// none.
func containerOf(dir string) pod.ContainerID {
	for ; len(dir) > 1; dir = filepath.Dir(dir) {
		if id := containerIn(filepath.Base(dir)); id != "" {
			return id
		}
	}
	return ""
}

// containerIn returns the container whose cgroup has this name, or "": runtimes put the ID last,
// except for systemd's suffix. CRI-O's container monitors are not containers.
func containerIn(name string) pod.ContainerID {
	name = strings.TrimSuffix(name, ".scope")
	n := len(name) - idDigits
	if n < 0 || strings.Trim(name[n:], "0123456789abcdef") != "" || strings.HasPrefix(name, "crio-conmon-") {
		return ""
	}
	return pod.ContainerID(name[n:])
}

// commandLength is the maximum length of a reported command line, in bytes.
const commandLength = 80

// command returns a process's command line; "" if it has exited.
func command(pid int) string {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	line, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	if text := strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " ")); err == nil && text != "" {
		return text[:min(len(text), commandLength)]
	}
	name, err := os.ReadFile(filepath.Join(proc, "comm"))
	if err != nil {
		return ""
	}
	return "[" + strings.TrimSpace(string(name)) + "]"
}

// describe names processes with their state. A process in state D (proc_pid_stat(5)) waits for a
// device or a file server, and cannot be killed before that has responded.
func describe(left []Process) string {
	var out []string
	for _, p := range left {
		text := fmt.Sprintf("process %d (%s)", p.PID, p.Command)
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.PID), "stat"))
		// The command name may have blanks and parentheses; the text after the last one does not.
		state := string(stat[strings.LastIndexByte(string(stat), ')')+1:])
		if err == nil && strings.HasPrefix(state, " D") {
			text += " in state D: it waits for a device or a file server, which must answer first"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}
