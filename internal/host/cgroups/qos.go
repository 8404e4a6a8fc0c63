package cgroups

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/pod"
)

var qosResources = [...]v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory}

// QOSClass returns the pod's quality of service class (Kubernetes documentation, "Pod Quality of
// Service Classes"). Pod-level resources decide if there are any, otherwise those of the init and
// regular containers; ephemeral containers never count. The pod must have the API's defaults:
// requests default to limits.
func QOSClass(p *v1.Pod) v1.PodQOSClass {
	stated, guaranteed := false, true
	judge := func(r *v1.ResourceRequirements) {
		limits, requests := amountsOf(r.Limits), amountsOf(r.Requests)
		stated = stated || statesQOS(limits) || statesQOS(requests)
		guaranteed = guaranteed && limitsEqualRequests(limits, requests)
	}
	if r := p.Spec.Resources; r != nil {
		judge(r)
	}
	if !stated {
		guaranteed = true
		for c := range pod.Containers(&p.Spec) {
			judge(&c.Resources)
		}
	}
	switch {
	case !stated:
		return v1.PodQOSBestEffort
	case guaranteed:
		return v1.PodQOSGuaranteed
	default:
		return v1.PodQOSBurstable
	}
}

// statesQOS reports whether there is an amount of CPU or memory.
func statesQOS(a amounts) bool {
	return slices.ContainsFunc(qosResources[:], func(name v1.ResourceName) bool { return a[name] > 0 })
}

func limitsEqualRequests(limits, requests amounts) bool {
	for _, name := range qosResources {
		if limits[name] == 0 || limits[name] != requests[name] {
			return false
		}
	}
	return true
}

type podValues struct {
	shares uint64
	// quota per period, in microseconds; 0: no limit.
	quota, period int64
	memory        int64 // bytes; 0: no limit
	pids          int64 // 0: no limit
	// protection is memory.min and memory.low of cgroup version 2; nil: not written.
	protection *protection
	// hugePages are the limits in bytes by page size in bytes. Other page sizes have the limit 0;
	// nil: not written.
	hugePages map[int64]int64
}

// protection is protected memory, in bytes.
type protection struct{ min, low int64 }

// Settings are the settings of the KubeletConfiguration that affect pods' cgroups.
type Settings struct {
	// PodPidsLimit limits the processes of each pod; 0 or less means no limit.
	PodPidsLimit int64
	// CPUQuota configures the enforcement of CPU limits.
	CPUQuota CPUQuota
	// MemoryQoS protects requested memory, if not nil. It needs cgroup version 2.
	MemoryQoS *MemoryQoS
}

func computePodValues(p *v1.Pod, s Settings) podValues {
	requests, class := podRequests(p), QOSClass(p)
	v := podValues{shares: MinShares, pids: max(s.PodPidsLimit, 0), hugePages: map[int64]int64{}}
	if q := s.MemoryQoS; q.Reserves() {
		v.protection = &protection{}
		v.protection.min, v.protection.low = q.Protected(class, requests[v1.ResourceMemory])
	}
	if class != v1.PodQOSBestEffort {
		limits := podLimits(p)
		v.shares = SharesFromMilliCPU(requests[v1.ResourceCPU])
		if !s.CPUQuota.isLiftedFor(p) {
			v.quota, v.period = s.CPUQuota.Of(limits[v1.ResourceCPU])
		}
		v.memory = limits[v1.ResourceMemory]
	}
	for name, n := range requests {
		if size, ok := pageSize(name); ok {
			v.hugePages[size] = n
		}
	}
	return v
}

// pageSize returns the page size in bytes of a resource named hugepages-<size>.
func pageSize(name v1.ResourceName) (int64, bool) {
	size, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix)
	if !ok {
		return 0, false
	}
	q, err := resource.ParseQuantity(size)
	return q.Value(), err == nil
}
