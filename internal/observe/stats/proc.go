package stats

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Interface is a network interface's counters.
type Interface struct {
	Name                                    string
	RxBytes, RxPackets, RxErrors, RxDropped uint64
	TxBytes, TxPackets, TxErrors, TxDropped uint64
}

type procFS string

// ignoredInterfaces are prefixes of interfaces that are the host's ends of pods, or local.
var ignoredInterfaces = []string{"lo", "veth", "docker", "nerdctl"}

// network reads the interfaces of a process's network namespace; nil if the process has exited.
func (p procFS) network(pid int) []Interface {
	b, err := os.ReadFile(filepath.Join(string(p), strconv.Itoa(pid), "net/dev"))
	if err != nil {
		return nil
	}
	return parseNetDev(b)
}

// parseNetDev parses /proc/<pid>/net/dev: two header lines, then eight receive and eight transmit
// columns per interface. Interfaces whose name is not valid UTF-8 are left out: root in a pod's
// network names its interfaces, and names become metric labels.
func parseNetDev(b []byte) []Interface {
	out := []Interface{}
	for line := range bytes.Lines(b) {
		name, columns, ok := strings.Cut(string(line), ":")
		name = strings.TrimSpace(name)
		fields := strings.Fields(columns)
		if !ok || len(fields) < 12 || !utf8.ValidString(name) || slices.ContainsFunc(ignoredInterfaces, func(p string) bool { return strings.HasPrefix(name, p) }) {
			continue
		}
		i := Interface{Name: name}
		for at, into := range map[int]*uint64{
			0: &i.RxBytes, 1: &i.RxPackets, 2: &i.RxErrors, 3: &i.RxDropped, 8: &i.TxBytes, 9: &i.TxPackets, 10: &i.TxErrors, 11: &i.TxDropped,
		} {
			*into, _ = strconv.ParseUint(fields[at], 10, 64) // an invalid column is 0
		}
		out = append(out, i)
	}
	return out
}

// machine is the machine's state according to /proc; unknown values are zero.
type machine struct {
	meminfo
	boot            time.Time
	tasks, maxTasks int64
}

// meminfo is memory in bytes (proc_meminfo(5)).
type meminfo struct{ memory, free, available, swap, swapFree uint64 }

func (p procFS) machine() machine {
	m := machine{meminfo: p.meminfo(), boot: BootTime(string(p))}
	m.tasks, m.maxTasks = p.tasks()
	return m
}

func (p procFS) meminfo() meminfo {
	var m meminfo
	for line := range bytes.Lines(p.read("meminfo")) {
		fields := strings.Fields(string(line))
		if len(fields) < 2 {
			continue
		}
		n, _ := strconv.ParseUint(fields[1], 10, 64)
		switch fields[0] {
		case "MemTotal:":
			m.memory = n << 10
		case "MemFree:":
			m.free = n << 10
		case "MemAvailable:":
			m.available = n << 10
		case "SwapTotal:":
			m.swap = n << 10
		case "SwapFree:":
			m.swapFree = n << 10
		}
	}
	return m
}

// tasks returns the number of tasks, including threads, and their maximum.
func (p procFS) tasks() (n, most int64) {
	if fields := strings.Fields(string(p.read("loadavg"))); len(fields) > 3 { // 0.00 0.01 0.05 1/234 5678
		_, all, _ := strings.Cut(fields[3], "/")
		n, _ = strconv.ParseInt(all, 10, 64)
	}
	pids, _ := strconv.ParseInt(strings.TrimSpace(string(p.read("sys/kernel/pid_max"))), 10, 64)
	threads, _ := strconv.ParseInt(strings.TrimSpace(string(p.read("sys/kernel/threads-max"))), 10, 64)
	switch {
	case pids == 0:
		return n, threads
	case threads == 0:
		return n, pids
	}
	return n, min(pids, threads)
}

// BootTime returns the boot time of the machine from the /proc directory; zero if unknown.
func BootTime(proc string) time.Time {
	b, _ := os.ReadFile(filepath.Join(proc, "stat"))
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte("btime ")); ok {
			if n, err := strconv.ParseInt(string(bytes.TrimSpace(rest)), 10, 64); err == nil {
				return time.Unix(n, 0)
			}
		}
	}
	return time.Time{}
}

// read returns a file of /proc, nil if it cannot be read.
func (p procFS) read(name string) []byte {
	b, err := os.ReadFile(filepath.Join(string(p), name))
	if err != nil {
		return nil
	}
	return b
}
