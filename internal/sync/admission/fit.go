package admission

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	podresource "k8s.io/component-helpers/resource"

	"berth/internal/pod"
)

// amounts are resource quantities of a pod or node, with arithmetic.
type amounts pod.Amounts

func requestsOf(p *v1.Pod) amounts {
	return amounts(pod.ComputeRequests(p, podresource.PodResourcesOptions{}))
}

func amountsOf(list v1.ResourceList) amounts { return amounts(pod.AmountsOf(list)) }

func (a amounts) add(b amounts) {
	for name, n := range b {
		a[name] += n
	}
}

func (a amounts) subtract(b amounts) {
	for name, n := range b {
		a[name] -= n
	}
}

// shortage is a resource of which less is free than a pod requests.
type shortage struct {
	resource                  v1.ResourceName
	requested, used, capacity int64
}

func (s shortage) missing() int64 { return s.requested - (s.capacity - s.used) }

func (s shortage) rejection() *Rejection {
	return &Rejection{
		Reason: "OutOf" + string(s.resource),
		Message: fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
			s.resource, s.requested, s.used, s.capacity),
	}
}

// wellKnown are the resources that are reported first, in this order; others follow by name.
var wellKnown = []v1.ResourceName{v1.ResourcePods, v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}

// computeShortages returns the resources whose allocatable minus the others' requests is too small.
// A node that reports no allocatable lacks nothing.
func computeShortages(a Attributes) []shortage {
	if a.Node.Status.Allocatable == nil {
		return nil
	}
	capacity, requested := amountsOf(a.Node.Status.Allocatable), requestsOf(a.Pod)
	order := slices.Clone(wellKnown)
	for _, name := range slices.Sorted(maps.Keys(requested)) {
		if !slices.Contains(wellKnown, name) {
			order = append(order, name)
		}
	}
	var short []shortage
	for _, name := range order {
		s := shortage{resource: name, requested: requested[name], used: a.used[name], capacity: capacity[name]}
		if s.requested > 0 && s.missing() > 0 {
			short = append(short, s)
		}
	}
	return short
}
