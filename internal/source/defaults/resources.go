package defaults

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"
)

// setResourceDefaults defaults requests to limits (ResourceRequirements.requests).
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

// setPodResourceDefaults sets the defaults of pod-level resources, if the pod has some (KEP-2837):
// limits of huge pages are the sum of the containers'. If there are limits, requests are the sum of
// the containers' requests, or the limit if there are none.
func setPodResourceDefaults(p *v1.Pod) {
	r := p.Spec.Resources
	if r == nil || len(r.Limits) == 0 && len(r.Requests) == 0 {
		return
	}
	roundUp(r.Limits)
	roundUp(r.Requests)
	for name, sum := range podresource.AggregateContainerLimits(p, podresource.PodResourcesOptions{}) {
		if _, ok := r.Requests[name]; strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) && !ok {
			setQuantityDefault(&r.Limits, name, sum)
		}
	}
	if len(r.Limits) == 0 {
		return
	}
	for name, sum := range podresource.AggregateContainerRequests(p, podresource.PodResourcesOptions{}) {
		// Not huge pages: their limits must equal their requests.
		if name == v1.ResourceCPU || name == v1.ResourceMemory {
			setQuantityDefault(&r.Requests, name, sum)
		}
	}
	for name, limit := range r.Limits {
		if podresource.IsSupportedPodLevelResource(name) {
			setQuantityDefault(&r.Requests, name, limit)
		}
	}
}

// setQuantityDefault sets the quantity if the list does not have the resource.
func setQuantityDefault(list *v1.ResourceList, name v1.ResourceName, q resource.Quantity) {
	if _, ok := (*list)[name]; ok {
		return
	}
	if *list == nil {
		*list = v1.ResourceList{}
	}
	(*list)[name] = q.DeepCopy()
}
