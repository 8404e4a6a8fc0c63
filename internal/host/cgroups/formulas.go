package cgroups

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// Bounds of CPU shares, and the period of CPU quotas (kernel documentation, cgroup v1 cpu
// controller and CFS bandwidth).
const (
	MinShares = 2
	MaxShares = 262144
	// QuotaPeriod is the default period of quotas, without cpuCFSQuotaPeriod, in microseconds.
	QuotaPeriod = 100_000

	minQuota       = 1000 // microseconds; the kernel rejects less
	sharesPerCPU   = 1024
	milliCPUPerCPU = 1000
)

// CPUQuota configures the enforcement of CPU limits (KubeletConfiguration's cpuCFSQuota and
// cpuCFSQuotaPeriod). The zero value enforces them with periods of 100 ms.
type CPUQuota struct {
	// Off disables the enforcement of CPU limits.
	Off bool
	// Period is from 1 ms to 1 s; 0 means 100 ms.
	Period time.Duration
	// OwnCPUs: containers can have exclusive CPUs (cpuManager's policy static). These containers
	// and their pods have no quota, because it would only throttle them.
	OwnCPUs bool
}

// IsLifted reports whether the container has no quota because its CPUs are exclusive.
func (q CPUQuota) IsLifted(p *v1.Pod, c *v1.Container) bool { return q.OwnCPUs && OwnCPUs(p, c) > 0 }

// isLiftedFor reports whether the pod as a whole has no quota: the kernel applies a cgroup's quota
// to all its descendants.
func (q CPUQuota) isLiftedFor(p *v1.Pod) bool {
	for c := range pod.Containers(&p.Spec) {
		if q.IsLifted(p, c) {
			return true
		}
	}
	return false
}

// OwnCPUs returns the number of exclusive CPUs that cpuManager's policy static assigns to the
// container: its request, if its pod is Guaranteed, the request is a whole number, and there are no
// pod-level resources (Kubernetes documentation, "Control CPU Management Policies on the Node").
func OwnCPUs(p *v1.Pod, c *v1.Container) int {
	cpu := c.Resources.Requests[v1.ResourceCPU]
	if p.Spec.Resources != nil || cpu.IsZero() || cpu.MilliValue()%milliCPUPerCPU != 0 || QOSClass(p) != v1.PodQOSGuaranteed {
		return 0
	}
	return int(cpu.Value())
}

// Of returns the quota and its period, in microseconds, for a limit in millicores. Both are 0 if
// there is no limit.
func (q CPUQuota) Of(milli int64) (quota, period int64) {
	if q.Off || milli <= 0 {
		return 0, 0
	}
	period = QuotaPeriod
	if q.Period > 0 {
		period = q.Period.Microseconds()
	}
	return QuotaFromMilliCPU(milli, period), period
}

// SharesFromMilliCPU returns the CPU shares for a request in millicores; MinShares without a
// request.
func SharesFromMilliCPU(milli int64) uint64 {
	if milli <= 0 {
		return MinShares
	}
	// Large requests are cut before the multiplication, which could overflow.
	if milli >= MaxShares {
		return MaxShares
	}
	return uint64(min(max(milli*sharesPerCPU/milliCPUPerCPU, MinShares), MaxShares))
}

// milliCPUFromShares returns a request that results in the shares; 0 for MinShares, as without a
// request.
func milliCPUFromShares(shares uint64) int64 {
	if shares <= MinShares {
		return 0
	}
	return (int64(min(shares, MaxShares))*milliCPUPerCPU + sharesPerCPU - 1) / sharesPerCPU
}

// WeightFromShares returns the cgroup v2 cpu.weight (1 to 10000) for CPU shares (KEP-2254).
func WeightFromShares(shares uint64) uint64 {
	shares = min(max(shares, MinShares), MaxShares)
	return 1 + (shares-MinShares)*9999/(MaxShares-MinShares)
}

// sharesFromWeight returns shares that result in the cpu.weight: the middle of the possible values,
// because sums of the lowest ones would be too small. The lowest weight results in MinShares, as
// without a request.
func sharesFromWeight(weight uint64) uint64 {
	least := func(weight uint64) uint64 { return MinShares + ((weight-1)*(MaxShares-MinShares)+9998)/9999 }
	switch {
	case weight <= 1:
		return MinShares
	case weight >= 10000:
		return MaxShares
	}
	return (least(weight) + least(weight+1)) / 2
}

// QuotaFromMilliCPU returns the CPU time in microseconds per period (also in microseconds) for a
// limit in millicores; 0 means that there is no limit.
func QuotaFromMilliCPU(milli, period int64) int64 {
	if milli <= 0 {
		return 0
	}
	return max(milli*period/milliCPUPerCPU, minQuota)
}

// MemoryHigh returns memory.high of a container, in whole pages: the memory usage above which it is
// throttled and reclaimed (KEP-2570). limit is the container's, or the node's allocatable memory if
// it has none. 0 means none: if the request reaches the limit, there is nothing to throttle.
func MemoryHigh(request, limit int64, factor float64, pageSize int64) int64 {
	if limit <= request {
		return 0
	}
	high := int64(float64(request)+factor*float64(limit-request)) / pageSize * pageSize
	if high <= request {
		return 0
	}
	return high
}

// SwapLimit returns the swap of a container under LimitedSwap, in bytes: the node's swap in
// proportion to the container's share of the node's memory (KEP-2400).
func SwapLimit(request, nodeMemory, nodeSwap int64) int64 {
	if request <= 0 || nodeMemory <= 0 || nodeSwap <= 0 {
		return 0
	}
	return int64(float64(request) / float64(nodeMemory) * float64(nodeSwap))
}
