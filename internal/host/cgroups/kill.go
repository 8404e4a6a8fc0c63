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
	// Command is its command line, cut to a few words; its name in brackets when it has none.
	Command string
	// Container is the one whose cgroup it is in, "" for none.
	Container pod.ContainerID
}

// KillPod kills what runs in the pod's cgroup, and below it, and blocks until nothing does, for 2.3
// seconds at most and no longer than ctx. An error names the processes that do not end. A pod
// without a cgroup is no error.
func (m *Manager) KillPod(ctx context.Context, uid pod.UID) error {
	dirs, err := m.podDirs(uid)
	if err != nil {
		return fmt.Errorf("kill the processes of pod %s: %w", uid, err)
	}
	return m.kill(ctx, uid, dirs)
}

// KillContainer is KillPod for one container of a pod. The runtime makes its cgroup, below the
// pod's, with the id in its name.
func (m *Manager) KillContainer(ctx context.Context, uid pod.UID, id pod.ContainerID) error {
	if id == "" {
		return fmt.Errorf("kill a container of pod %s: it has no id", uid) // every name has that in it
	}
	pods, err := m.podDirs(uid)
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
	return m.kill(ctx, uid, dirs)
}

// podDirs returns the directories of the pod's cgroup that are there.
func (m *Manager) podDirs(uid pod.UID) ([]string, error) {
	if uid == "" {
		return nil, errors.New("the pod has no UID")
	}
	var out []string
	for _, class := range classes {
		dirs, err := m.dirs(podName(m.root, class, uid))
		if err != nil {
			return nil, err
		}
		out = append(out, slices.DeleteFunc(dirs, func(d string) bool { return !lib.PathExists(d) })...)
	}
	return out, nil
}

// kill kills what runs below the directories, which are of the pod's cgroup.
func (m *Manager) kill(ctx context.Context, uid pod.UID, dirs []string) error {
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

// untilGone does what fails with EBUSY while killed processes have not left, removeTries times at
// most.
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

// Processes returns what runs in the pod's cgroup, and below it, by their numbers.
func (m *Manager) Processes(uid pod.UID) ([]Process, error) {
	dirs, err := m.podDirs(uid)
	if err != nil {
		return nil, fmt.Errorf("processes of pod %s: %w", uid, err)
	}
	pids, err := pidsIn(dirs)
	return processesOf(pids), err
}

// pidsIn returns the processes below the directories with the containers that they are in.
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

// idDigits is the length of a container's id.
const idDigits = 64

// containerOf returns the container in whose cgroup a directory is, or below it; "" for none.
func containerOf(dir string) pod.ContainerID {
	for ; len(dir) > 1; dir = filepath.Dir(dir) {
		if id := containerIn(filepath.Base(dir)); id != "" {
			return id
		}
	}
	return ""
}

// containerIn returns the container whose cgroup has this name, "" when it is none: runtimes put
// the id last, but for systemd's suffix. A container's monitor of CRI-O is none.
func containerIn(name string) pod.ContainerID {
	name = strings.TrimSuffix(name, ".scope")
	n := len(name) - idDigits
	if n < 0 || strings.Trim(name[n:], "0123456789abcdef") != "" || strings.HasPrefix(name, "crio-conmon-") {
		return ""
	}
	return pod.ContainerID(name[n:])
}

// commandLength is how much of a command line is told, in bytes.
const commandLength = 80

// command returns a process' command line; what is gone has none.
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

// describe names processes with the state that the kernel has them in. In state D
// (proc_pid_stat(5)) a process waits for a device or a file server, and nothing ends it before that
// has answered.
func describe(left []Process) string {
	var out []string
	for _, p := range left {
		text := fmt.Sprintf("process %d (%s)", p.PID, p.Command)
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.PID), "stat"))
		// The name of the command may have blanks and parentheses; what follows the last one is
		// plain.
		state := string(stat[strings.LastIndexByte(string(stat), ')')+1:])
		if err == nil && strings.HasPrefix(state, " D") {
			text += " in state D: it waits for a device or a file server, which must answer first"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}
