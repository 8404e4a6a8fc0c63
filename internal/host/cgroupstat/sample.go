package cgroupstat

import (
	"math"
	"time"
)

// Unlimited is the value of a limit that is not set.
const Unlimited = math.MaxUint64

// unlimitedFrom is the lowest value that means no limit: version 1 writes the largest number of
// pages.
const unlimitedFrom = 1 << 62

// Sample is one reading. Parts that the kernel does not support are nil.
type Sample struct {
	Time     time.Time
	CPU      *CPU
	Memory   *Memory
	Pids     *Pids
	IO       []DeviceIO // by device; empty without I/O or without the controller
	Pressure *Pressure  // version 2 with PSI only
}

// CPU is CPU time in nanoseconds, and its limits.
type CPU struct {
	Usage, User, System uint64
	// Periods, ThrottledPeriods and Bursts count periods of the quota.
	Periods, ThrottledPeriods, Bursts uint64
	ThrottledTime, BurstTime          uint64 // nanoseconds
	// Shares are CPU shares, from the weight in version 2 (KEP-2254). Quota and Period are in
	// microseconds; Quota 0 means none.
	Shares, Quota, Period uint64
}

// Memory is in bytes. RSS, Cache and the fields after them are of the whole subtree.
type Memory struct {
	Usage, Peak, Kernel, Swap     uint64
	Failures                      uint64 // of charges at the limit; version 1 only
	Cache, RSS, Mapped            uint64
	ActiveFile, InactiveFile      uint64
	Faults, MajorFaults           uint64
	Limit, SwapLimit, Reservation uint64 // Unlimited for none; Reservation 0 for none
}

// WorkingSet returns the memory that cannot be reclaimed easily: the usage without inactive file
// pages.
func (m *Memory) WorkingSet() uint64 { return m.Usage - min(m.InactiveFile, m.Usage) }

// Pids counts threads of the subtree, and processes of the cgroup itself. Max 0 means no limit.
type Pids struct {
	Threads, Max, Processes uint64
}

// DeviceIO is the I/O of one block device.
type DeviceIO struct {
	Major, Minor          uint32
	ReadBytes, WriteBytes uint64
	Reads, Writes         uint64
	// Cost is set if the kernel distributes the device by cost (io.cost.qos of version 2).
	Cost *IOCost
}

// IOCost is the device time that was used, waited for, and throttled because of debt, in
// microseconds.
type IOCost struct {
	Usage, Wait, Debt, Delay uint64
}

// Pressure is the kernel's pressure stall information (Documentation/accounting/psi.rst); a
// resource without it is nil.
type Pressure struct {
	CPU, Memory, IO *Stall
}

// Stall is the time for which some, and all, tasks waited for a resource.
type Stall struct {
	Some, Full Stalled
}

// Stalled is the share of time in percent over 10, 60 and 300 seconds, and the total in
// microseconds.
type Stalled struct {
	Avg10, Avg60, Avg300 float64
	Total                uint64
}
