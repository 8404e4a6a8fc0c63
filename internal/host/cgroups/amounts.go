package cgroups

import (
	v1 "k8s.io/api/core/v1"
	podresource "k8s.io/component-helpers/resource"

	"berth/internal/pod"
)

// amounts are resources as plain numbers: CPU in thousandths, all others in their unit (bytes).
// Absent and zero are the same.
type amounts map[v1.ResourceName]int64

func amountsOf(l v1.ResourceList) amounts {
	a := amounts{}
	for name, q := range l {
		n := q.Value()
		if name == v1.ResourceCPU {
			n = q.MilliValue()
		}
		if n > 0 {
			a[name] = n
		}
	}
	return a
}

// podRequests returns what the pod asks for, its overhead included.
func podRequests(p *v1.Pod) amounts {
	return amountsOf(podresource.PodRequests(p, podresource.PodResourcesOptions{}))
}

// podLimits returns the limits of the pod as a whole, its overhead included: those at pod level,
// and the sums of those that every container has. A resource that one container may use without
// bound has no limit.
func podLimits(p *v1.Pod) amounts {
	total := amountsOf(podresource.PodLimits(p, podresource.PodResourcesOptions{}))
	podLevel := amounts{}
	if r := p.Spec.Resources; r != nil {
		podLevel = amountsOf(r.Limits)
	}
	for c := range pod.Containers(&p.Spec) {
		stated := amountsOf(c.Resources.Limits)
		for name := range total {
			if stated[name] == 0 && podLevel[name] == 0 {
				delete(total, name)
			}
		}
	}
	return total
}

// SummedMemoryLimit returns the pod's memory limit in bytes for the sizing of its memory-backed
// volumes: the one at pod level, or else the sum of those that its containers state; 0 when there
// is none. Unlike the pod cgroup's limit, the sum does not need every container to have one
// (KEP-1967).
func SummedMemoryLimit(p *v1.Pod) int64 {
	limits := podresource.PodLimits(p, podresource.PodResourcesOptions{ExcludeOverhead: true})
	return limits.Memory().Value()
}
