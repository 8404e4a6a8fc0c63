package cgroupstat

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	lib "github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

// Hierarchy describes where each controller's tree is mounted.
type Hierarchy struct {
	// Version is 1 or 2; a hybrid host is 1.
	Version int
	mounts  map[string]string // mount point by controller; "" with version 2
}

// Detect finds the host's hierarchies.
func Detect() (Hierarchy, error) {
	h := Hierarchy{Version: 1, mounts: map[string]string{}}
	mounts, err := lib.GetCgroupMounts(true)
	if err != nil {
		return h, fmt.Errorf("cgroup hierarchies: %w", err)
	}
	if lib.IsCgroup2UnifiedMode() {
		h.Version = 2
	}
	for _, m := range mounts {
		if h.Version == 2 {
			h.mounts[""] = m.Mountpoint
			continue
		}
		for _, c := range m.Subsystems {
			h.mounts[c] = m.Mountpoint
		}
	}
	if len(h.mounts) == 0 {
		return h, errors.New("no cgroup hierarchy is mounted (expected at /sys/fs/cgroup)")
	}
	return h, nil
}

// Own returns the cgroup of this process from the kernel's files in proc. It returns "" for the
// root cgroup, and with version 1 if the cgroups for CPU and memory differ.
func (h Hierarchy) Own(proc string) (string, error) {
	of, err := lib.ParseCgroupFile(proc + "/self/cgroup")
	if err != nil {
		return "", fmt.Errorf("the cgroup of this process: %w", err)
	}
	own := of[""]
	if h.Version == 1 {
		if own = of["memory"]; own != of["cpu"] {
			return "", nil
		}
	}
	if own == "/" {
		return "", nil
	}
	return own, nil
}

// At returns a hierarchy of the given version whose controllers are mounted below dir, for tests
// with plain files.
func At(version int, dir string) Hierarchy {
	h := Hierarchy{Version: version, mounts: map[string]string{"": dir}}
	if version == 1 {
		h.mounts = map[string]string{}
		for _, c := range []string{"cpu", "cpuacct", "memory", "pids", "blkio"} {
			h.mounts[c] = filepath.Join(dir, c)
		}
	}
	return h
}

// Dir returns the directory of a cgroup in the tree of a controller. path is relative to the tree's
// root. It returns "" if the controller is not mounted.
func (h Hierarchy) Dir(controller, path string) string {
	if h.Version == 2 {
		controller = ""
	}
	m, ok := h.mounts[controller]
	if !ok {
		return ""
	}
	return filepath.Join(m, path)
}

// List returns the path of every container's cgroup below the pod's, by container ID. Runtimes name
// them after the ID, with a prefix and suffix if systemd creates them: cri-containerd-<id>.scope,
// crio-<id>.scope. The result is nil if the pod's cgroup does not exist.
func (h Hierarchy) List(podPath string) (map[string]string, error) {
	entries, err := os.ReadDir(h.Dir("memory", podPath))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("containers of cgroup %s: %w", podPath, err)
	}
	out := map[string]string{}
	for _, e := range entries {
		if id := ContainerID(e.Name()); e.IsDir() && id != "" {
			out[id] = filepath.Join(podPath, e.Name())
		}
	}
	return out, nil
}

// ContainerID returns the ID of the container whose cgroup has this name, or "" if it is not a
// container's: IDs have 64 hexadecimal digits.
func ContainerID(name string) string {
	const digits = 64
	name = strings.TrimSuffix(name, ".scope")
	if len(name) < digits {
		return ""
	}
	id := name[len(name)-digits:]
	if strings.Trim(id, "0123456789abcdef") != "" || len(name) > digits && name[len(name)-digits-1] != '-' {
		return ""
	}
	if strings.HasPrefix(name, "crio-conmon-") {
		return "" // the container's monitor
	}
	return id
}

// OOMKills returns the number of OOM kills of the cgroup: of the whole subtree in version 2, of the
// cgroup itself in version 1. A group kill (memory.oom.group) counts once, as in oom_group_kill of
// memory.events; oom_kill counts each killed process.
func (h Hierarchy) OOMKills(path string) (uint64, error) {
	b, err := os.ReadFile(h.EventsFile(path))
	if err != nil {
		return 0, fmt.Errorf("OOM kills of cgroup %s: %w", path, err)
	}
	counts := map[string]uint64{}
	parseFlat(b, func(key string, n uint64) { counts[key] = n })
	if h.killsTogether(path) {
		if n, ok := counts["oom_group_kill"]; ok { // since Linux 5.17
			return n, nil
		}
	}
	return counts["oom_kill"], nil
}

// killsTogether reports whether the kernel kills all processes of the cgroup when it kills one.
func (h Hierarchy) killsTogether(path string) bool {
	if h.Version != 2 {
		return false
	}
	b, err := os.ReadFile(filepath.Join(h.Dir("", path), "memory.oom.group"))
	return err == nil && strings.TrimSpace(string(b)) == "1"
}

// EventsFile returns the path of the file with the kernel's OOM kill counters.
func (h Hierarchy) EventsFile(path string) string {
	if h.Version == 2 {
		return filepath.Join(h.Dir("", path), "memory.events")
	}
	return filepath.Join(h.Dir("memory", path), "memory.oom_control")
}

// IsGone reports whether a reading failed because the cgroup was removed.
func IsGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// ContainerIn returns the ID of the outermost container in a cgroup's path, or "".
func ContainerIn(path string) string {
	for word := range strings.SplitSeq(path, "/") {
		if id := ContainerID(word); id != "" {
			return id
		}
	}
	return ""
}

// FirstProcess returns the PID of a process of the cgroup in the host's PID namespace, or 0.
func (h Hierarchy) FirstProcess(path string) int {
	if pids := h.Processes(path); len(pids) > 0 {
		return pids[0]
	}
	return 0
}

// Processes returns the PIDs of the cgroup itself in the host's PID namespace.
func (h Hierarchy) Processes(path string) []int {
	for _, controller := range []string{"cpu", "memory", "pids"} {
		dir := h.Dir(controller, path)
		if dir == "" {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return nil
		}
		var out []int
		for _, f := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(f); err == nil && n > 0 {
				out = append(out, n)
			}
		}
		return out
	}
	return nil
}

// Created returns the creation time of the cgroup: the oldest modification time of its directory
// and of a file that is never written; zero if it was removed.
func (h Hierarchy) Created(path string) time.Time {
	dir, name := h.Dir("memory", path), "cgroup.clone_children"
	if h.Version == 2 {
		name = "cgroup.events"
	}
	var oldest time.Time
	for _, p := range []string{dir, filepath.Join(dir, name)} {
		if s, err := os.Stat(p); err == nil && (oldest.IsZero() || s.ModTime().Before(oldest)) {
			oldest = s.ModTime()
		}
	}
	return oldest
}
