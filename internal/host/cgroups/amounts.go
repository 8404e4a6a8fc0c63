package cgroups

import (
	v1 "k8s.io/api/core/v1"
	podresource "k8s.io/component-helpers/resource"

	"berth/internal/pod"
)

// amounts are resources as plain numbers: CPU in millicores, all others in their unit (bytes).
// Absent and zero are equivalent.
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

// podRequests returns the pod's requests, including overhead.
func podRequests(p *v1.Pod) amounts {
	return amountsOf(podresource.PodRequests(p, podresource.PodResourcesOptions{}))
}

// PodLimits returns the limits of the pod as a whole: those at pod level, and the sums of those
// that every init and regular container has. A resource for which any container has no limit has
// none.
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

// podLimits returns the limits of the pod's cgroup, including overhead.
func podLimits(p *v1.Pod) amounts {
	return amountsOf(PodLimits(p, podresource.PodResourcesOptions{}))
}

// PodMemoryLimit returns the limit in bytes for memory-backed volumes (KEP-1967): the memory limit
// of the pod without its overhead; 0 if there is none.
func PodMemoryLimit(p *v1.Pod) int64 {
	limits := PodLimits(p, podresource.PodResourcesOptions{ExcludeOverhead: true})
	return limits.Memory().Value()
}
