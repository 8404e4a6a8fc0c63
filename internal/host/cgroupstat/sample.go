package cgroupstat

import (
	"math"
	"time"
)

// Unlimited stands for a limit that is none.
const Unlimited = math.MaxUint64

// unlimitedFrom is the least value that counts as none: version 1 writes the largest number of
// pages.
const unlimitedFrom = 1 << 62

// Sample is one reading. A part that the kernel does not offer here is nil.
type Sample struct {
	Time     time.Time
	CPU      *CPU
	Memory   *Memory
	Pids     *Pids
	IO       []DeviceIO // by device; empty without I/O or without the controller
	Pressure *Pressure  // version 2 with PSI only
}

// CPU is processor time in nanoseconds, and the bounds of it.
type CPU struct {
	Usage, User, System uint64
	// Periods, ThrottledPeriods and Bursts count periods of the quota.
	Periods, ThrottledPeriods, Bursts uint64
	ThrottledTime, BurstTime          uint64 // nanoseconds
	// Shares are CPU shares, from the weight in version 2 (KEP-2254). Quota and Period are
	// microseconds; Quota 0 is none.
	Shares, Quota, Period uint64
}

// Memory is in bytes. RSS, Cache and what follows them count the whole subtree.
type Memory struct {
	Usage, Peak, Kernel, Swap     uint64
	Failures                      uint64 // of charges at the limit; version 1 only
	Cache, RSS, Mapped            uint64
	ActiveFile, InactiveFile      uint64
	Faults, MajorFaults           uint64
	Limit, SwapLimit, Reservation uint64 // Unlimited for none; Reservation 0 for none
}

// WorkingSet is what cannot be reclaimed without harm: the usage without inactive pages of files.
func (m *Memory) WorkingSet() uint64 { return m.Usage - min(m.InactiveFile, m.Usage) }

// Pids counts tasks of the subtree (threads), and processes of the cgroup itself. Max 0 is without
// a bound.
type Pids struct {
	Threads, Max, Processes uint64
}

// DeviceIO is what was read from and written to one block device.
type DeviceIO struct {
	Major, Minor          uint32
	ReadBytes, WriteBytes uint64
	Reads, Writes         uint64
	// Cost is there where the kernel shares the device out by cost (io.cost.qos of version 2).
	Cost *IOCost
}

// IOCost is the time of a device that was used, waited for, and gone without because of debts, in
// microseconds.
type IOCost struct {
	Usage, Wait, Debt, Delay uint64
}

// Pressure is the kernel's pressure stall information (Documentation/accounting/psi.rst); a
// resource without it is nil.
type Pressure struct {
	CPU, Memory, IO *Stall
}

// Stall says for how long some, and all, tasks waited for a resource.
type Stall struct {
	Some, Full Stalled
}

// Stalled is the share of time in percent over 10, 60 and 300 seconds, and the total in
// microseconds.
type Stalled struct {
	Avg10, Avg60, Avg300 float64
	Total                uint64
}
