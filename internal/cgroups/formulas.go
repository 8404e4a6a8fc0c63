package cgroups

// Bounds of CPU shares, and the period of CPU quotas (kernel documentation, cgroup v1 cpu controller and CFS bandwidth).
const (
	MinShares = 2
	MaxShares = 262144
	// QuotaPeriod is the period that quotas are for, in microseconds.
	QuotaPeriod = 100_000

	minQuota       = 1000 // microseconds; the kernel refuses less
	sharesPerCPU   = 1024
	milliCPUPerCPU = 1000
)

// SharesFromMilliCPU returns the CPU shares for a request in thousandths of a CPU; no request is MinShares.
func SharesFromMilliCPU(milli int64) uint64 {
	if milli <= 0 {
		return MinShares
	}
	// Requests beyond the bound are cut before the multiplication can overflow.
	if milli >= MaxShares {
		return MaxShares
	}
	return uint64(min(max(milli*sharesPerCPU/milliCPUPerCPU, MinShares), MaxShares))
}

// WeightFromShares returns the cgroup v2 cpu.weight (1 to 10000) that stands for CPU shares (KEP-2254).
func WeightFromShares(shares uint64) uint64 {
	shares = min(max(shares, MinShares), MaxShares)
	return 1 + (shares-MinShares)*9999/(MaxShares-MinShares)
}

// QuotaFromMilliCPU returns the CPU time in microseconds per period (also in microseconds) for a limit in thousandths of a
// CPU; 0 means that there is no limit.
func QuotaFromMilliCPU(milli, period int64) int64 {
	if milli <= 0 {
		return 0
	}
	return max(milli*period/milliCPUPerCPU, minQuota)
}
