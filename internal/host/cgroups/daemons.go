package cgroups

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	lib "github.com/opencontainers/cgroups"
	libmanager "github.com/opencontainers/cgroups/manager"
	"golang.org/x/sys/unix"
)

// Daemons is a cgroup of the machine's processes that do not belong to pods: in the hierarchy of
// each controller with version 1, in the unified hierarchy with version 2.
type Daemons struct {
	dirs []move
}

// move is a cgroup in one hierarchy, and the source of its processes.
type move struct{ from, to string }

// OpenDaemons creates the cgroup, if necessary. Both paths are relative to the root of the
// hierarchies. Gather moves processes from root, which is "/" except in tests. Cgroups are created
// through cgroupfs even with systemd: a cgroup that is a systemd unit exists already.
func OpenDaemons(root, cgroup string) (*Daemons, error) {
	from, err := open(root)
	if err != nil {
		return nil, fmt.Errorf("cgroup %s: %w", root, err)
	}
	to, err := open(path.Join(root, cgroup))
	if err == nil {
		err = to.Apply(-1)
	}
	if err != nil {
		return nil, fmt.Errorf("make cgroup %s: %w", cgroup, err)
	}
	// The cgroup of the devices controller is not created, because it would need device rules.
	dirs := slices.DeleteFunc(pair(from.GetPaths(), to.GetPaths()), func(m move) bool { return !lib.PathExists(m.to) })
	return &Daemons{dirs}, nil
}

func open(cgroup string) (lib.Manager, error) {
	if version, _ := Detect(); version == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted (expected at " + mountpoint + ")")
	}
	return libmanager.New(&lib.Cgroup{Path: path.Join("/", cgroup), Resources: &lib.Resources{SkipDevices: true}})
}

// pair returns the directories of two cgroups by hierarchy; a hierarchy may have several
// controllers. In hybrid mode, named hierarchies and the unnamed one of version 2 have no
// controllers and are skipped: systemd, which created them, relies on their content.
func pair(from, to map[string]string) []move {
	var out []move
	for _, controller := range slices.Sorted(maps.Keys(to)) {
		m := move{from[controller], to[controller]}
		controls := !strings.HasPrefix(controller, lib.CgroupNamePrefix) && (controller != "" || len(to) == 1)
		if controls && m.from != "" && m.to != "" && !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	return out
}

// Join moves this process into the cgroup. Processes that it starts later are there, too.
func (d *Daemons) Join() error { return d.put(os.Getpid()) }

// put moves a process into the cgroup.
func (d *Daemons) put(pid int) error {
	for _, m := range d.dirs {
		if err := lib.WriteCgroupProc(m.to, pid); err != nil {
			return fmt.Errorf("move into cgroup %s: %w", m.to, explained(err))
		}
	}
	return nil
}

// explained explains EBUSY.
func explained(err error) error {
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("with cgroup v2 no process can be in a cgroup that has others with controllers in it; name another one: %w", err)
	}
	return err
}

// Gather moves the processes in the root of each hierarchy into the cgroup, except kernel threads
// and the first process. It returns the number of moved processes, and continues after a process
// that cannot be moved.
func (d *Daemons) Gather() (moved int, err error) {
	var roots [][]int
	for _, m := range d.dirs {
		pids, err := lib.GetPids(m.from)
		if err != nil {
			return 0, fmt.Errorf("processes of cgroup %s: %w", m.from, err)
		}
		roots = append(roots, pids)
	}
	var failed []error
	for _, pid := range inAll(roots) {
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil || !isDaemon(pid, string(stat)) {
			continue // exited meanwhile, or not to be moved
		}
		switch err := d.put(pid); {
		case err == nil:
			moved++
		case !errors.Is(err, unix.ESRCH):
			failed = append(failed, fmt.Errorf("%s: %w", describe([]Process{{PID: pid, Command: command(pid)}}), err))
		}
	}
	if len(failed) > 0 {
		return moved, fmt.Errorf("%d processes cannot be moved, such as %w", len(failed), failed[0])
	}
	return moved, nil
}

// inAll returns the numbers that are in each list, sorted.
func inAll(lists [][]int) []int {
	counts := map[int]int{}
	for _, list := range lists {
		for _, n := range list {
			counts[n]++
		}
	}
	maps.DeleteFunc(counts, func(_, count int) bool { return count < len(lists) })
	return slices.Sorted(maps.Keys(counts))
}

// kernelThread is the flag of kernel threads (PF_KTHREAD of include/linux/sched.h).
const kernelThread = 0x00200000

// isDaemon reports whether a process with that /proc/<pid>/stat is moved: it is not the first
// process, a kernel thread, or a process that has exited.
func isDaemon(pid int, stat string) bool {
	// The name may have blanks and parentheses; it is followed by state, ppid, pgrp, session,
	// tty_nr, tpgid and flags.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if pid <= 1 || len(fields) < 7 || fields[0] == "Z" || fields[0] == "X" {
		return false
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	return err == nil && flags&kernelThread == 0
}
