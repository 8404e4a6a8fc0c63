package cgroups

import (
	"iter"
	"maps"

	v1 "k8s.io/api/core/v1"
)

// amounts are resources as plain numbers: CPU in thousandths, all others in their unit (bytes). Absent and zero are the same.
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

func (a amounts) add(b amounts) {
	for name, n := range b {
		a[name] += n
	}
}

func (a amounts) raise(b amounts) {
	for name, n := range b {
		a[name] = max(a[name], n)
	}
}

// limitsOf returns the limits that the resources state.
func limitsOf(r *v1.ResourceRequirements) amounts { return amountsOf(r.Limits) }

// requestsOf returns the requests that the resources state; a limit without a request is a request of the same amount, as
// the API server defaults it.
func requestsOf(r *v1.ResourceRequirements) amounts {
	a := limitsOf(r)
	maps.Copy(a, amountsOf(r.Requests))
	return a
}

// sumOver adds up what the pod's containers need at one time: the larger of what runs for the pod's life (regular containers
// and sidecars) and what each init container needs beside the sidecars started before it (KEP-753). Ephemeral containers have no
// resources.
func sumOver(p *v1.Pod, of func(*v1.ResourceRequirements) amounts) amounts {
	sidecars, peak := amounts{}, amounts{}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		need := of(&c.Resources)
		if isSidecar(c) {
			sidecars.add(need)
			peak.raise(sidecars)
			continue
		}
		need.add(sidecars)
		peak.raise(need)
	}
	total := sidecars
	for i := range p.Spec.Containers {
		total.add(of(&p.Spec.Containers[i].Resources))
	}
	total.raise(peak)
	return total
}

func isSidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// podRequests returns what the pod asks for, its overhead included. Pod-level requests replace the sum over containers
// (KEP-2837); a pod-level limit stands in for a resource that nobody requests.
func podRequests(p *v1.Pod) amounts {
	total := sumOver(p, requestsOf)
	if r := p.Spec.Resources; r != nil {
		for name, n := range limitsOf(r) {
			if total[name] == 0 {
				total[name] = n
			}
		}
		maps.Copy(total, amountsOf(r.Requests))
	}
	total.add(amountsOf(p.Spec.Overhead))
	return total
}

// podLimits returns the limits of the pod as a whole, its overhead included: those at pod level, and the sums of those that
// every container has. A resource that one container may use without bound has no limit.
func podLimits(p *v1.Pod) amounts {
	total := sumOver(p, limitsOf)
	for c := range containersOf(p) {
		stated := limitsOf(&c.Resources)
		for name := range total {
			if stated[name] == 0 {
				delete(total, name)
			}
		}
	}
	if r := p.Spec.Resources; r != nil {
		maps.Copy(total, limitsOf(r))
	}
	for name, n := range amountsOf(p.Spec.Overhead) {
		if total[name] > 0 {
			total[name] += n
		}
	}
	return total
}

// SummedMemoryLimit returns the pod's memory limit in bytes for the sizing of its memory-backed volumes: the one at pod level, or
// else the sum of those that its containers state; 0 when there is none. Unlike the pod cgroup's limit, the sum does not need every
// container to have one (KEP-1967).
func SummedMemoryLimit(p *v1.Pod) int64 {
	if r := p.Spec.Resources; r != nil {
		if n := limitsOf(r)[v1.ResourceMemory]; n > 0 {
			return n
		}
	}
	return sumOver(p, limitsOf)[v1.ResourceMemory]
}

// containersOf yields the init and regular containers: those that have resources.
func containersOf(p *v1.Pod) iter.Seq[*v1.Container] {
	return func(yield func(*v1.Container) bool) {
		for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}
