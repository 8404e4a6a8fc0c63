package admission

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// extendedResources refuses pods that ask for an extended resource of which the Node has none: no
// device plugin offers it, and nobody has advertised it on the Node by hand (Kubernetes
// documentation, "Advertise Extended Resources for a Node").
//
// Differs from the kubelet: it takes a pod whose extended resource the Node does not name at all,
// because a scheduler extender may handle it. A device that is asked for and not there is worse
// than a refusal that says so.
func extendedResources(a Attributes) *Rejection {
	if a.Node == nil {
		return nil // predicates says so
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

// firstAsking returns the name of the first container that asks for a resource, "" if none does.
func firstAsking(p *v1.Pod, name v1.ResourceName) string {
	for c := range pod.Containers(&p.Spec) {
		if q := c.Resources.Requests[name]; !q.IsZero() {
			return c.Name
		}
	}
	return ""
}

// isExtended reports whether a resource belongs to neither Kubernetes nor the kernel: it has a
// domain, which is not kubernetes.io (Kubernetes documentation, "Extended resources").
func isExtended(name v1.ResourceName) bool {
	domain, _, ok := strings.Cut(string(name), "/")
	return ok && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io")
}
