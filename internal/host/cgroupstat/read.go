package cgroupstat

import (
	"bytes"
	"fmt"
	"slices"
	"time"
)

// reader takes one sample; its methods do nothing after the first error.
type reader struct {
	g   *Group
	buf []byte
	err error
}

// text returns the file's content, nil if it does not exist; it is valid until the next call.
func (r *reader) text(f file) []byte {
	if r.err != nil {
		return nil
	}
	b, err := r.g.content(f, &r.buf)
	r.err = err
	return b
}

// number returns the file's number; ok is false if the file does not exist.
func (r *reader) number(f file) (n uint64, ok bool) {
	b := r.text(f)
	if b == nil {
		return 0, false
	}
	n, err := parseNumber(b)
	if err != nil {
		r.err = fmt.Errorf("cgroup %s: %s: %w", r.g.path, places[r.g.h.Version][f].name, err)
	}
	return n, err == nil
}

// clockTick is the unit of cpuacct.stat (USER_HZ, which is 100 on every architecture that Go
// supports).
const clockTick = uint64(time.Second / 100)

func (r *reader) cpu() *CPU {
	var c CPU
	v1 := r.g.h.Version == 1
	seen := false
	if v1 {
		if n, ok := r.number(cpuUsage); ok {
			c.Usage, seen = n, true
		}
		parseFlat(r.text(cpuTimes), func(key string, n uint64) {
			switch key {
			case "user":
				c.User = n * clockTick
			case "system":
				c.System = n * clockTick
			}
		})
	}
	parseFlat(r.text(cpuStat), func(key string, n uint64) {
		const us = uint64(time.Microsecond)
		switch key {
		case "usage_usec":
			c.Usage, seen = n*us, true
		case "user_usec":
			c.User = n * us
		case "system_usec":
			c.System = n * us
		case "nr_periods":
			c.Periods = n
		case "nr_throttled":
			c.ThrottledPeriods = n
		case "throttled_usec":
			c.ThrottledTime = n * us
		case "throttled_time":
			c.ThrottledTime = n
		case "nr_bursts":
			c.Bursts = n
		case "burst_usec":
			c.BurstTime = n * us
		case "burst_time":
			c.BurstTime = n
		}
	})
	c.Shares, _ = r.number(cpuShares)
	if v1 {
		c.Quota, _ = r.number(cpuMax)
		c.Period, _ = r.number(cpuPeriod)
	} else {
		c.Shares = sharesFromWeight(c.Shares)
		if b := r.text(cpuMax); b != nil {
			var err error
			if c.Quota, c.Period, err = parseCPUMax(b); err != nil && r.err == nil {
				r.err = fmt.Errorf("cgroup %s: %w", r.g.path, err)
			}
		}
	}
	if !seen {
		return nil
	}
	return &c
}

func (r *reader) memory() *Memory {
	m := Memory{Limit: Unlimited, SwapLimit: Unlimited}
	stat := r.text(memoryStat)
	if stat == nil {
		return nil
	}
	v1 := r.g.h.Version == 1
	var anon uint64
	parseFlat(stat, func(key string, n uint64) {
		if v1 {
			m.setV1(key, n)
			return
		}
		switch key {
		case "anon":
			anon = n
		case "file":
			m.Cache = n
		case "file_mapped":
			m.Mapped = n
		case "active_file":
			m.ActiveFile = n
		case "inactive_file":
			m.InactiveFile = n
		case "pgfault":
			m.Faults = n
		case "pgmajfault":
			m.MajorFaults = n
		}
	})
	if !v1 {
		m.RSS = anon
	}
	var ok bool
	if m.Usage, ok = r.number(memoryUsage); !ok {
		m.Usage = m.RSS + m.Cache // the root of version 2 has no usage
	}
	for f, into := range map[file]*uint64{
		memoryPeak: &m.Peak, memoryFailures: &m.Failures, memoryReservation: &m.Reservation, memoryLimit: &m.Limit, memorySwapLimit: &m.SwapLimit,
	} {
		if n, ok := r.number(f); ok {
			*into = n
		}
	}
	if v1 {
		if n, ok := r.number(memoryKernel); ok {
			m.Kernel = n
		}
	} else if n, ok := r.number(memorySwap); ok {
		m.Swap = n
	}
	if m.Reservation == Unlimited {
		m.Reservation = 0
	}
	return &m
}

// setV1 sets the value of a line of memory.stat of version 1. Faults are those of the cgroup
// itself, other values those of the subtree.
func (m *Memory) setV1(key string, n uint64) {
	switch key {
	case "total_cache":
		m.Cache = n
	case "total_rss":
		m.RSS = n
	case "total_mapped_file":
		m.Mapped = n
	case "total_active_file":
		m.ActiveFile = n
	case "total_inactive_file":
		m.InactiveFile = n
	case "total_swap":
		m.Swap = n
	case "pgfault":
		m.Faults = n
	case "pgmajfault":
		m.MajorFaults = n
	}
}

func (r *reader) pids() *Pids {
	var p Pids
	current, ok := r.number(pidsCurrent)
	p.Threads = current
	if limit, ok := r.number(pidsMax); ok && limit != Unlimited {
		p.Max = limit
	}
	list := r.text(procs)
	if list != nil {
		p.Processes = uint64(bytes.Count(list, []byte("\n")))
	}
	if !ok && list == nil {
		return nil
	}
	return &p
}

func (r *reader) blkio() []DeviceIO {
	size := slices.Clone(r.text(ioStat))
	return parseBlkio(size, r.text(ioCount))
}

func (r *reader) pressure() *Pressure {
	var p Pressure
	for _, x := range []struct {
		f    file
		into **Stall
	}{{cpuPressure, &p.CPU}, {memoryPressure, &p.Memory}, {ioPressure, &p.IO}} {
		b := r.text(x.f)
		if b == nil {
			continue
		}
		s, err := parsePressure(b)
		if err != nil && r.err == nil {
			r.err = fmt.Errorf("cgroup %s: %w", r.g.path, err)
		}
		*x.into = s
	}
	if p == (Pressure{}) {
		return nil
	}
	return &p
}
