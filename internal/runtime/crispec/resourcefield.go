package crispec

import (
	"fmt"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/pod"
)

// resourceOf returns a resource of the container itself, or of the named one.
func resourceOf(in Container, ref *v1.ResourceFieldSelector) (string, error) {
	c := in.Container
	if ref.ContainerName != "" && ref.ContainerName != c.Name {
		if c = pod.FindContainer(&in.Pod.Spec, ref.ContainerName); c == nil {
			return "", fmt.Errorf("container %s not found", ref.ContainerName)
		}
	}
	return ResourceField(in.Pod, c, ref, in.Environment.Allocatable)
}

// ResourceField returns a resource of a container for environment variables and downwardAPI volumes
// (Kubernetes documentation, "Downward API"): the amount divided by the divisor, rounded up. An
// unset limit of cpu, memory or ephemeral-storage defaults to the pod's, then to the node's
// allocatable amount.
func ResourceField(p *v1.Pod, c *v1.Container, ref *v1.ResourceFieldSelector, allocatable v1.ResourceList) (string, error) {
	kind, name, _ := strings.Cut(ref.Resource, ".")
	resourceName := v1.ResourceName(name)
	switch {
	case kind != "limits" && kind != "requests":
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	case resourceName == v1.ResourceCPU, resourceName == v1.ResourceMemory, resourceName == v1.ResourceEphemeralStorage:
	case strings.HasPrefix(name, v1.ResourceHugePagesPrefix):
	default:
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	var amount resource.Quantity
	var err error
	if kind == "requests" {
		amount = c.Resources.Requests[resourceName]
	} else if amount, err = computeLimit(p, c, resourceName, allocatable); err != nil {
		return "", err
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	value, by := amount.Value(), divisor.Value()
	if resourceName == v1.ResourceCPU {
		value, by = amount.MilliValue(), divisor.MilliValue()
	}
	quotient := value / by
	if value%by > 0 {
		quotient++
	}
	return strconv.FormatInt(quotient, 10), nil
}

func computeLimit(p *v1.Pod, c *v1.Container, name v1.ResourceName, allocatable v1.ResourceList) (resource.Quantity, error) {
	if limit, ok := c.Resources.Limits[name]; ok && !limit.IsZero() {
		return limit, nil
	}
	if strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
		return resource.Quantity{}, nil
	}
	if p.Spec.Resources != nil {
		if limit, ok := p.Spec.Resources.Limits[name]; ok && !limit.IsZero() {
			return limit, nil
		}
	}
	if amount, ok := allocatable[name]; ok {
		return amount, nil
	}
	return resource.Quantity{}, fmt.Errorf("container %q sets no limit of %s, and the node's allocatable amount is not known", c.Name, name)
}
