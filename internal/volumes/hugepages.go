package volumes

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// isHugePages reports whether the medium is HugePages, of whatever size.
func isHugePages(m v1.StorageMedium) bool {
	return m == v1.StorageMediumHugePages || strings.HasPrefix(string(m), string(v1.StorageMediumHugePagesPrefix))
}

// computePageSize returns the size of the pages that the volume of a pod is made of: the one that the medium names, which the pod must ask for, or the
// only one that the pod asks for (Kubernetes documentation, "Manage HugePages").
func computePageSize(p *v1.Pod, medium v1.StorageMedium) (resource.Quantity, error) {
	var asked []string
	for _, c := range containersOf(p) {
		for _, list := range []v1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
			for name := range list {
				if size, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix); ok && !slices.Contains(asked, size) {
					asked = append(asked, size)
				}
			}
		}
	}
	slices.Sort(asked)
	if size, ok := strings.CutPrefix(string(medium), string(v1.StorageMediumHugePagesPrefix)); ok {
		if !slices.Contains(asked, size) {
			return resource.Quantity{}, fmt.Errorf("medium %q: no container of the pod requests %s%s", medium, v1.ResourceHugePagesPrefix, size)
		}
		asked = []string{size}
	}
	if len(asked) != 1 {
		return resource.Quantity{}, fmt.Errorf("medium %q needs containers that request huge pages of one size, this pod requests %d: use medium HugePages-<size>", medium, len(asked))
	}
	q, err := resource.ParseQuantity(asked[0])
	if err != nil {
		return resource.Quantity{}, fmt.Errorf("size of huge pages %q: %w", asked[0], err)
	}
	return q, nil
}
