package node

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// reconcileNode returns the desired state of an existing Node, given the Node as it would be
// registered now: the agent's annotations and well-known labels, and the resources of the machine.
// Other labels and taints are retained: other clients own them.
func reconcileNode(s *Settings, existing, wanted *v1.Node) *v1.Node {
	out := existing.DeepCopy()
	for _, key := range []string{annotationAttach, annotationProvidedIP} {
		value, want := wanted.Annotations[key]
		if !want {
			delete(out.Annotations, key)
			continue
		}
		if out.Annotations == nil {
			out.Annotations = map[string]string{}
		}
		out.Annotations[key] = value
	}
	for _, key := range wellKnownLabels {
		if value, ok := wanted.Labels[key]; ok {
			if out.Labels == nil {
				out.Labels = map[string]string{}
			}
			out.Labels[key] = value
		}
	}
	reconcileResources(&out.Status.Capacity, wanted.Status.Capacity)
	reconcileResources(&out.Status.Allocatable, wanted.Status.Allocatable)
	return out
}

// reconcileResources fills an empty list, and adds and removes huge page sizes.
func reconcileResources(have *v1.ResourceList, wanted v1.ResourceList) {
	if len(*have) == 0 {
		*have = wanted.DeepCopy()
		return
	}
	for name := range *have {
		if _, ok := wanted[name]; !ok && isHugePages(name) {
			delete(*have, name)
		}
	}
	for name, q := range wanted {
		if _, ok := (*have)[name]; !ok && isHugePages(name) {
			(*have)[name] = q
		}
	}
}

// withoutExtended returns the Node with its extended resources set to zero.
func withoutExtended(n *v1.Node) *v1.Node {
	out := n.DeepCopy()
	for _, list := range []v1.ResourceList{out.Status.Capacity, out.Status.Allocatable} {
		for name := range list {
			if isExtended(name) {
				list[name] = *resource.NewQuantity(0, resource.DecimalSI)
			}
		}
	}
	return out
}
