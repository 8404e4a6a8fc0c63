package cgroupstat

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

type file uint8

const (
	cpuUsage file = iota // version 1
	cpuTimes             // version 1
	cpuStat
	cpuShares // cpu.weight in version 2
	cpuMax    // cpu.cfs_quota_us in version 1
	cpuPeriod // version 1
	memoryUsage
	memoryStat
	memoryPeak
	memoryKernel // version 1
	memoryFailures
	memoryLimit
	memoryReservation
	memorySwap // version 2
	memorySwapLimit
	pidsCurrent
	pidsMax
	procs
	ioStat
	ioCount // version 1
	cpuPressure
	memoryPressure
	ioPressure
	files
)

// place is a file's controller and name; an empty name means that the version does not have the
// file.
type place struct{ controller, name string }

var places = map[int][files]place{
	1: {
		cpuUsage: {"cpuacct", "cpuacct.usage"}, cpuTimes: {"cpuacct", "cpuacct.stat"}, cpuStat: {"cpu", "cpu.stat"}, cpuShares: {"cpu", "cpu.shares"},
		cpuMax: {"cpu", "cpu.cfs_quota_us"}, cpuPeriod: {"cpu", "cpu.cfs_period_us"},
		memoryUsage: {"memory", "memory.usage_in_bytes"}, memoryStat: {"memory", "memory.stat"}, memoryPeak: {"memory", "memory.max_usage_in_bytes"},
		memoryKernel: {"memory", "memory.kmem.usage_in_bytes"}, memoryFailures: {"memory", "memory.failcnt"}, memoryLimit: {"memory", "memory.limit_in_bytes"},
		memoryReservation: {"memory", "memory.soft_limit_in_bytes"}, memorySwapLimit: {"memory", "memory.memsw.limit_in_bytes"},
		pidsCurrent: {"pids", "pids.current"}, pidsMax: {"pids", "pids.max"}, procs: {"cpu", "cgroup.procs"},
		ioStat: {"blkio", "blkio.throttle.io_service_bytes_recursive"}, ioCount: {"blkio", "blkio.throttle.io_serviced_recursive"},
	},
	2: {
		cpuStat: {"", "cpu.stat"}, cpuShares: {"", "cpu.weight"}, cpuMax: {"", "cpu.max"},
		memoryUsage: {"", "memory.current"}, memoryStat: {"", "memory.stat"}, memoryPeak: {"", "memory.peak"}, memoryLimit: {"", "memory.max"},
		memoryReservation: {"", "memory.min"}, memorySwap: {"", "memory.swap.current"}, memorySwapLimit: {"", "memory.swap.max"},
		pidsCurrent: {"", "pids.current"}, pidsMax: {"", "pids.max"}, procs: {"", "cgroup.procs"}, ioStat: {"", "io.stat"},
		cpuPressure: {"", "cpu.pressure"}, memoryPressure: {"", "memory.pressure"}, ioPressure: {"", "io.pressure"},
	},
}

// Descriptors of a Group: not opened yet, and nonexistent.
const (
	closed  = -1
	missing = -2
)

// Group reads one cgroup repeatedly. It keeps its files open between readings, so that a reading is
// a few calls of pread. It is not safe for concurrent use.
type Group struct {
	h    Hierarchy
	path string
	fds  [files]int32
}

// Open returns a Group for the cgroup at the path from the hierarchies' root. It opens no file yet.
func (h Hierarchy) Open(path string) *Group {
	g := &Group{h: h, path: path}
	for i := range g.fds {
		g.fds[i] = closed
	}
	return g
}

// Close closes open files; the next reading reopens them.
func (g *Group) Close() {
	for i, fd := range g.fds {
		if fd >= 0 {
			_ = unix.Close(int(fd)) // opened read-only
		}
		g.fds[i] = closed
	}
}

// content returns the content of the file, or nil if this host or cgroup does not have it. It is
// overwritten by the next call.
func (g *Group) content(f file, buf *[]byte) ([]byte, error) {
	if g.fds[f] == missing {
		return nil, nil
	}
	p := places[g.h.Version][f]
	if g.fds[f] == closed {
		dir := g.h.Dir(p.controller, g.path)
		if p.name == "" || dir == "" {
			g.fds[f] = missing
			return nil, nil
		}
		fd, err := unix.Open(filepath.Join(dir, p.name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, fs.ErrNotExist) {
			g.fds[f] = missing
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("cgroup %s: %s: %w", g.path, p.name, err)
		}
		g.fds[f] = int32(fd)
	}
	if len(*buf) == 0 {
		*buf = make([]byte, 4096)
	}
	n := 0
	for {
		m, err := unix.Pread(int(g.fds[f]), (*buf)[n:], int64(n))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP): // pressure of a kernel booted with psi=0
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("cgroup %s: %s: %w", g.path, p.name, err)
		}
		if m == 0 {
			return (*buf)[:n], nil
		}
		n += m
		if n == len(*buf) {
			*buf = append(*buf, make([]byte, len(*buf))...)
		}
	}
}

// Read returns a sample. If the cgroup was removed, it returns an error for which IsGone is true.
func (g *Group) Read() (Sample, error) {
	s := Sample{Time: time.Now()}
	r := reader{g: g}
	s.CPU = r.cpu()
	s.Memory = r.memory()
	s.Pids = r.pids()
	if g.h.Version == 2 {
		s.IO = parseIOStat(r.text(ioStat))
		s.Pressure = r.pressure()
	} else {
		s.IO = r.blkio()
	}
	if r.err != nil {
		g.Close()
		return Sample{}, r.err
	}
	if s.CPU == nil && s.Memory == nil {
		g.Close() // missing files may exist once the cgroup does
		return Sample{}, fmt.Errorf("cgroup %s: %w", g.path, fs.ErrNotExist)
	}
	return s, nil
}
