package cgroups

import (
	"os"

	v1 "k8s.io/api/core/v1"
)

// MemoryQoS are the settings of memory quality of service on cgroup version 2 (KEP-2570).
type MemoryQoS struct {
	// ThrottlingFactor is KubeletConfiguration's memoryThrottlingFactor, more than 0 and at most 1.
	ThrottlingFactor float64
	// Reserve protects requested memory from being reclaimed (memoryReservationPolicy
	// TieredReservation).
	Reserve bool
	// Allocatable is the node's allocatable memory in bytes: the limit of containers without one.
	Allocatable int64
}

// Reserves reports whether requested memory is protected. It is false if q is nil.
func (q *MemoryQoS) Reserves() bool { return q != nil && q.Reserve }

// High returns memory.high of a container of a burstable or best-effort pod; a limit of 0 means
// none. If it returns 0, memory.high is not set.
func (q MemoryQoS) High(request, limit int64) int64 {
	if limit == 0 {
		limit = q.Allocatable
	}
	return MemoryHigh(request, limit, q.ThrottlingFactor, int64(os.Getpagesize()))
}

// Protected returns memory.min and memory.low of a pod of the class, or of a container in one, with
// that request: guaranteed memory is never reclaimed, burstable memory last. At most one is not 0.
func (q MemoryQoS) Protected(class v1.PodQOSClass, request int64) (lowest, low int64) {
	switch {
	case !q.Reserve:
		return 0, 0
	case class == v1.PodQOSGuaranteed:
		return request, 0
	case class == v1.PodQOSBurstable:
		return 0, request
	}
	return 0, 0
}
