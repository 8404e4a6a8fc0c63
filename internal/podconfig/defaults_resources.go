package podconfig

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// setResourceDefaults makes requests of limits (ResourceRequirements.requests).
func setResourceDefaults(r *v1.ResourceRequirements) {
	roundUp(r.Limits)
	roundUp(r.Requests)
	for name, limit := range r.Limits {
		setQuantityDefault(&r.Requests, name, limit)
	}
}

// roundUp rounds quantities up to thousandths, the finest unit of the API
// (kubernetes.io/docs/concepts/configuration/manage-resources-containers, "CPU resource units").
func roundUp(list v1.ResourceList) {
	for name, q := range list {
		if q.RoundUp(resource.Milli) {
			continue
		}
		list[name] = q
	}
}

// setPodResourceDefaults completes the resources of the pod as a whole, if it has some (KEP-2837): the huge pages are what the containers
// have together. Where there are limits, requests are what the containers request together, and the limit where they request nothing.
func setPodResourceDefaults(spec *v1.PodSpec) {
	r := spec.Resources
	if r == nil || len(r.Limits) == 0 && len(r.Requests) == 0 {
		return
	}
	roundUp(r.Limits)
	roundUp(r.Requests)
	for name, sum := range computeSums(spec, limitsOf) {
		if _, ok := r.Requests[name]; isHugePages(name) && !ok {
			setQuantityDefault(&r.Limits, name, sum)
		}
	}
	if len(r.Limits) == 0 {
		return
	}
	for name, sum := range computeSums(spec, requestsOf) {
		// Huge pages cannot be limited higher than they are requested.
		if isPodLevel(name) && !isHugePages(name) {
			setQuantityDefault(&r.Requests, name, sum)
		}
	}
	for name, limit := range r.Limits {
		if isPodLevel(name) {
			setQuantityDefault(&r.Requests, name, limit)
		}
	}
}

// setQuantityDefault sets the quantity if the list has none of the resource.
func setQuantityDefault(list *v1.ResourceList, name v1.ResourceName, q resource.Quantity) {
	if _, ok := (*list)[name]; ok {
		return
	}
	if *list == nil {
		*list = v1.ResourceList{}
	}
	(*list)[name] = q.DeepCopy()
}

func requestsOf(c *v1.Container) v1.ResourceList { return c.Resources.Requests }

func limitsOf(c *v1.Container) v1.ResourceList { return c.Resources.Limits }

// computeSums returns what the containers of the pod have together of each resource that one of them has: all main and sidecar containers,
// or the largest init container with the sidecars started before it
// (kubernetes.io/docs/concepts/workloads/pods/sidecar-containers, "Resource sharing within containers").
func computeSums(spec *v1.PodSpec, amounts func(*v1.Container) v1.ResourceList) v1.ResourceList {
	running, peak := v1.ResourceList{}, v1.ResourceList{}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		starting := running.DeepCopy()
		addAmounts(starting, amounts(c))
		if ptr.Deref(c.RestartPolicy, "") == v1.ContainerRestartPolicyAlways {
			running = starting
		}
		raise(peak, starting)
	}
	for i := range spec.Containers {
		addAmounts(running, amounts(&spec.Containers[i]))
	}
	raise(peak, running)
	return peak
}

func addAmounts(sum, more v1.ResourceList) {
	for name, q := range more {
		total := sum[name]
		total.Add(q)
		sum[name] = total
	}
}

// raise makes every amount of peak at least that of the other list.
func raise(peak, other v1.ResourceList) {
	for name, q := range other {
		if highest, ok := peak[name]; !ok || q.Cmp(highest) > 0 {
			peak[name] = q
		}
	}
}
