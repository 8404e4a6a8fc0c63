package cpumanager

import (
	v1 "k8s.io/api/core/v1"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

// exclusiveCPUs returns the number of exclusive CPUs that the container requests; 0: it uses the
// shared pool, as ephemeral containers always do.
func exclusiveCPUs(p *v1.Pod, c *v1.Container, gates Gates) int {
	if cgroups.QOSClass(p) != v1.PodQOSGuaranteed || pod.FindContainer(&p.Spec, c.Name) == nil {
		return 0
	}
	if hasPodLevel(p) && (!gates.PodLevelResourceManagers || !isGuaranteed(c)) {
		return 0
	}
	cpu := c.Resources.Requests[v1.ResourceCPU]
	if whole := cpu.Value(); whole*1000 == cpu.MilliValue() {
		return int(whole)
	}
	return 0
}

// hasPodLevel reports whether the pod has pod-level resources (KEP-2837).
func hasPodLevel(p *v1.Pod) bool {
	r := p.Spec.Resources
	return r != nil && len(r.Requests)+len(r.Limits) > 0
}

// isGuaranteed reports whether the container alone would make a pod Guaranteed (KEP-5526).
func isGuaranteed(c *v1.Container) bool {
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		limit, request := c.Resources.Limits[name], c.Resources.Requests[name]
		if limit.IsZero() || limit.Cmp(request) != 0 {
			return false
		}
	}
	return true
}

// peak returns the maximum number of CPUs that the pod uses at the same time: plain init containers
// run one after the other, each beside the sidecars before it (KEP-753).
func peak(p *v1.Pod, cpusOf func(*v1.Container) int) int {
	most, sidecars := 0, 0
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if lifecycle.IsSidecar(c) {
			sidecars += cpusOf(c)
		} else {
			most = max(most, sidecars+cpusOf(c))
		}
	}
	for i := range p.Spec.Containers {
		sidecars += cpusOf(&p.Spec.Containers[i])
	}
	return max(most, sidecars)
}
