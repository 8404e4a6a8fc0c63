package pod

import (
	v1 "k8s.io/api/core/v1"
	podresource "k8s.io/component-helpers/resource"
)

// Amounts are resources in their base unit: bytes, pieces, and thousandths of CPUs.
type Amounts map[v1.ResourceName]int64

// AmountsOf returns the amounts of a list.
func AmountsOf(list v1.ResourceList) Amounts {
	out := Amounts{}
	for name, q := range list {
		if name == v1.ResourceCPU {
			out[name] = q.MilliValue()
		} else {
			out[name] = q.Value()
		}
	}
	return out
}

// ComputeRequests returns the pod's requests: the sum of containers and sidecars, or the maximum of
// a step of its init containers, plus overhead; pod-level resources override (Kubernetes
// documentation, "Resource sharing within containers" of sidecars). It includes 1 of the resource
// pods.
func ComputeRequests(p *v1.Pod, o podresource.PodResourcesOptions) Amounts {
	out := AmountsOf(podresource.PodRequests(p, o))
	out[v1.ResourcePods] = 1
	if claim := p.Status.ExtendedResourceClaimStatus; claim != nil {
		for _, m := range claim.RequestMappings { // allocated by DRA (KEP-5004)
			delete(out, v1.ResourceName(m.ResourceName))
		}
	}
	return out
}
