package admission

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// extendedResources rejects pods that request an extended resource of which the Node has none: no
// device plugin offers it, and no administrator has advertised it on the Node (Kubernetes
// documentation, "Advertise Extended Resources for a Node").
//
// Differs from the kubelet, which admits a pod whose extended resource is missing from the Node,
// because a scheduler extender may handle it. An explicit rejection is better than a missing
// device.
func extendedResources(a Attributes) *Rejection {
	if a.Node == nil {
		return nil // rejected by predicates
	}
	has, requested := amountsOf(a.Node.Status.Allocatable), requestsOf(a.Pod)
	for _, name := range slices.Sorted(maps.Keys(requested)) {
		if !isExtended(name) || requested[name] == 0 || has[name] > 0 {
			continue
		}
		r := shortage{resource: name, requested: requested[name], used: a.used[name]}.rejection()
		r.Message += fmt.Sprintf(": container %q asks for %s, which is not available on this node: no device plugin has registered it",
			firstAsking(a.Pod, name), name)
		r.stale = true
		return r
	}
	return nil
}

// firstAsking returns the name of the first container that requests the resource, or "".
func firstAsking(p *v1.Pod, name v1.ResourceName) string {
	for c := range pod.Containers(&p.Spec) {
		if q := c.Resources.Requests[name]; !q.IsZero() {
			return c.Name
		}
	}
	return ""
}

// isExtended reports whether a resource belongs to neither Kubernetes nor the kernel: it has a
// domain other than kubernetes.io (Kubernetes documentation, "Extended resources").
func isExtended(name v1.ResourceName) bool {
	domain, _, ok := strings.Cut(string(name), "/")
	return ok && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io")
}
