package podconfig

import v1 "k8s.io/api/core/v1"

// stripAll returns the API's pods without managedFields, which nobody here reads and which are half of a pod's memory. A pod that was
// stripped before is returned as it is, by pointer, so that the merge sees that nothing changed. The pods given are not changed.
func stripAll(pods []*v1.Pod) []*v1.Pod {
	out := make([]*v1.Pod, len(pods))
	for i, p := range pods {
		if len(p.ManagedFields) > 0 {
			stripped := *p
			stripped.ManagedFields = nil
			p = &stripped
		}
		out[i] = p
	}
	return out
}
