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
	// QuotaPeriod is the period that quotas are for unless cpuCFSQuotaPeriod says otherwise, in
	// microseconds.
	QuotaPeriod = 100_000

	minQuota       = 1000 // microseconds; the kernel refuses less
	sharesPerCPU   = 1024
	milliCPUPerCPU = 1000
)

// CPUQuota says how CPU limits are enforced (KubeletConfiguration's cpuCFSQuota and
// cpuCFSQuotaPeriod). The zero value enforces them with periods of 100 ms.
type CPUQuota struct {
	// Off enforces no CPU limit.
	Off bool
	// Period is from 1 ms to 1 s; 0 is 100 ms.
	Period time.Duration
	// OwnCPUs says that containers are given whole CPUs of their own (the policy static of
	// cpuManager). They, and their pods, have no quota: it would only slow them down.
	OwnCPUs bool
}

// IsLifted reports whether the container has no quota because its CPUs are its own.
func (q CPUQuota) IsLifted(p *v1.Pod, c *v1.Container) bool { return q.OwnCPUs && OwnCPUs(p, c) > 0 }

// isLiftedFor reports whether the pod as a whole has no quota: the kernel has a quota include all
// below.
func (q CPUQuota) isLiftedFor(p *v1.Pod) bool {
	for c := range pod.Containers(&p.Spec) {
		if q.IsLifted(p, c) {
			return true
		}
	}
	return false
}

// OwnCPUs returns how many CPUs the policy static of cpuManager gives the container for itself: as
// many as it asks for, if its pod is guaranteed, it asks for whole ones, and nothing is asked for
// at pod level (Kubernetes documentation, "Control CPU Management Policies on the Node").
func OwnCPUs(p *v1.Pod, c *v1.Container) int {
	cpu := c.Resources.Requests[v1.ResourceCPU]
	if p.Spec.Resources != nil || cpu.IsZero() || cpu.MilliValue()%milliCPUPerCPU != 0 || QOSClass(p) != v1.PodQOSGuaranteed {
		return 0
	}
	return int(cpu.Value())
}

// Of returns the quota and its period, in microseconds, for a limit in thousandths of a CPU. Both
// are 0 where there is no limit.
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

// SharesFromMilliCPU returns the CPU shares for a request in thousandths of a CPU; no request is
// MinShares.
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

// milliCPUFromShares returns a request that gives the shares; 0 for MinShares, which is what no
// request gives.
func milliCPUFromShares(shares uint64) int64 {
	if shares <= MinShares {
		return 0
	}
	return (int64(min(shares, MaxShares))*milliCPUPerCPU + sharesPerCPU - 1) / sharesPerCPU
}

// WeightFromShares returns the cgroup v2 cpu.weight (1 to 10000) that stands for CPU shares
// (KEP-2254).
func WeightFromShares(shares uint64) uint64 {
	shares = min(max(shares, MinShares), MaxShares)
	return 1 + (shares-MinShares)*9999/(MaxShares-MinShares)
}

// sharesFromWeight returns shares that give the cpu.weight: the middle of all that do, as sums of
// the least would come out too small. They are MinShares for the least weight, which is what no
// request gives.
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
// limit in thousandths of a CPU; 0 means that there is no limit.
func QuotaFromMilliCPU(milli, period int64) int64 {
	if milli <= 0 {
		return 0
	}
	return max(milli*period/milliCPUPerCPU, minQuota)
}

// MemoryHigh returns memory.high of a container: the use of memory from which on it is slowed down
// and reclaimed from, in whole pages (KEP-2570). The limit is the container's, or the node's
// allocatable memory for one without. 0 is none: where requests reach the limit there is nothing to
// throttle in between.
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

// SwapLimit returns the swap of a container under LimitedSwap, in bytes: the part of the node's
// swap that its request is of the node's memory (KEP-2400).
func SwapLimit(request, nodeMemory, nodeSwap int64) int64 {
	if request <= 0 || nodeMemory <= 0 || nodeSwap <= 0 {
		return 0
	}
	return int64(float64(request) / float64(nodeMemory) * float64(nodeSwap))
}
