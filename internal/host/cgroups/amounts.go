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

// PodLimits returns the limits that bound the pod as a whole: those at pod level, and the sums of
// those that every init and regular container has. A resource that one container may use without
// bound has no limit, whatever the others state.
func PodLimits(p *v1.Pod, o podresource.PodResourcesOptions) v1.ResourceList {
	total := podresource.PodLimits(p, o)
	podLevel := amounts{}
	if r := p.Spec.Resources; r != nil {
		podLevel = amountsOf(r.Limits)
	}
	for c := range pod.Containers(&p.Spec) {
		stated := amountsOf(c.Resources.Limits)
		for name := range total {
			if stated[name] == 0 && (podLevel[name] == 0 || !podresource.IsSupportedPodLevelResource(name)) {
				delete(total, name)
			}
		}
	}
	return total
}

// podLimits returns the limits of the pod's cgroup, the pod's overhead included.
func podLimits(p *v1.Pod) amounts {
	return amountsOf(PodLimits(p, podresource.PodResourcesOptions{}))
}

// PodMemoryLimit returns the memory in bytes that bounds memory-backed volumes (KEP-1967): the
// limit of the pod without its overhead; 0 when there is none.
func PodMemoryLimit(p *v1.Pod) int64 {
	limits := PodLimits(p, podresource.PodResourcesOptions{ExcludeOverhead: true})
	return limits.Memory().Value()
}
