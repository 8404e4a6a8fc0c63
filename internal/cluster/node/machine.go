package node

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is the state that the kernel and system files report. Values that could not be read are
// zero.
type Machine struct {
	// CPUs that are online.
	CPUs int
	// Memory and Swap in bytes; swap may be 0.
	Memory, Swap int64
	// PIDs is the maximum number of processes and threads.
	PIDs int64
	// HugePages is the reserved memory in bytes by page size in bytes; nil if it could not be read.
	HugePages map[int64]int64
	// Storage is the size in bytes of the file system of the agent's root directory.
	Storage int64

	MachineID, SystemUUID, BootID string
	// Kernel is the kernel's release, OSImage the name of the distribution.
	Kernel, OSImage string
}

// Host reads the machine.
type Host struct {
	// Root is the parent of /proc, /sys and /etc: "/" except in tests.
	Root string
	// Dir is the agent's root directory. Its file system is the node's ephemeral storage.
	Dir string
}

// Read returns the values that could be read, and the errors of the others. Identifiers that a
// machine need not have are empty.
func (h Host) Read() (Machine, error) {
	var m Machine
	var errs []error
	note := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	var err error
	m.CPUs, err = h.cpus()
	note("CPUs", err)
	m.Memory, m.Swap, err = h.memory()
	note("memory", err)
	m.PIDs, err = h.pids()
	note("process ids", err)
	m.HugePages, err = h.hugePages()
	note("huge pages", err)
	m.Storage, err = storageOf(h.Dir)
	note("ephemeral storage", err)
	m.Kernel, err = h.line("/proc/sys/kernel/osrelease")
	note("kernel release", err)
	m.BootID, err = h.line("/proc/sys/kernel/random/boot_id")
	note("boot id", err)
	m.MachineID = h.first("/etc/machine-id", "/var/lib/dbus/machine-id")
	// Machines without DMI have a serial in the device tree, or only their machine ID.
	m.SystemUUID = h.first("/sys/class/dmi/id/product_uuid", "/proc/device-tree/system-id", "/proc/device-tree/vm,uuid", "/etc/machine-id")
	m.OSImage = h.osImage()
	return m, errors.Join(errs...)
}

func (h Host) path(name string) string { return filepath.Join("/", h.Root, name) }

// line returns a file of one line.
func (h Host) line(name string) (string, error) {
	b, err := os.ReadFile(h.path(name))
	return strings.Trim(string(b), " \n\x00"), err
}

// first returns the first non-empty line among the files.
func (h Host) first(names ...string) string {
	for _, name := range names {
		if s, err := h.line(name); err == nil && s != "" {
			return s
		}
	}
	return ""
}

func (h Host) cpus() (int, error) {
	list, err := h.line("/sys/devices/system/cpu/online")
	if err != nil {
		return 0, err
	}
	return countCPUs(list)
}

func (h Host) memory() (memory, swap int64, err error) {
	const name = "/proc/meminfo"
	b, err := os.ReadFile(h.path(name))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		var into *int64
		switch fields[0] {
		case "MemTotal:":
			into = &memory
		case "SwapTotal:":
			into = &swap
		default:
			continue
		}
		kib, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("%s: %q: %w", name, line, err)
		}
		*into = kib << 10
	}
	if memory == 0 {
		return 0, 0, fmt.Errorf("%s has no MemTotal", name)
	}
	return memory, swap, nil
}

// pids returns the smaller of the kernel's limits of process IDs and of threads
// (proc_sys_kernel(5)).
func (h Host) pids() (int64, error) {
	least := int64(math.MaxInt64)
	for _, name := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		text, err := h.line(name)
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		least = min(least, n)
	}
	return least, nil
}

// hugePages returns the pools of huge pages, none if the kernel has no support.
func (h Host) hugePages() (map[int64]int64, error) {
	const dir = "/sys/kernel/mm/hugepages"
	out := map[int64]int64{}
	entries, err := os.ReadDir(h.path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		size, ok := strings.CutPrefix(e.Name(), "hugepages-")
		kib, err := strconv.ParseInt(strings.TrimSuffix(size, "kB"), 10, 64)
		if !ok || err != nil {
			continue
		}
		text, err := h.line(filepath.Join(dir, e.Name(), "nr_hugepages"))
		if err != nil {
			return nil, err
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		out[kib<<10] = n * kib << 10
	}
	return out, nil
}

// osImage returns PRETTY_NAME of os-release(5).
func (h Host) osImage() string {
	for _, name := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		b, err := os.ReadFile(h.path(name))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
				return strings.Trim(value, `"'`)
			}
		}
	}
	return "Linux" // os-release(5): the default of PRETTY_NAME
}

func storageOf(dir string) (int64, error) {
	var s unix.Statfs_t
	err := unix.Statfs(dir, &s)
	// A directory that does not exist yet will be on the file system of its parent.
	for up := dir; errors.Is(err, fs.ErrNotExist) && up != filepath.Dir(up); {
		up = filepath.Dir(up)
		err = unix.Statfs(up, &s)
	}
	if err != nil {
		return 0, fmt.Errorf("statfs %s: %w", dir, err)
	}
	return int64(s.Blocks) * int64(s.Frsize), nil
}
