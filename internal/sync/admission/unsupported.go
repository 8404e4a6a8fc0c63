package admission

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// Unsupported returns the paths of the pod's fields that this version does not carry out. Volumes
// are the business of volumes.Unsupported.
func Unsupported(p *v1.Pod) []string {
	var out []string
	is := func(set bool, format string, args ...any) {
		if set {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	s := &p.Spec
	is(len(s.ResourceClaims) > 0, "spec.resourceClaims")
	// A claim that the scheduler made for an extended resource (KEP-5004) stands nowhere else.
	if claim := p.Status.ExtendedResourceClaimStatus; claim != nil {
		for _, m := range claim.RequestMappings {
			is(true, "status.extendedResourceClaimStatus: container %q: %s by the claim %q", m.ContainerName, m.ResourceName, claim.ResourceClaimName)
		}
	}
	for i := range s.InitContainers {
		out = append(out, unsupportedOf(fmt.Sprintf("spec.initContainers[%d]", i), &s.InitContainers[i])...)
	}
	for i := range s.Containers {
		out = append(out, unsupportedOf(fmt.Sprintf("spec.containers[%d]", i), &s.Containers[i])...)
	}
	return out
}

func unsupportedOf(path string, c *v1.Container) []string {
	var out []string
	is := func(set bool, field string) {
		if set {
			out = append(out, path+"."+field)
		}
	}
	is(len(c.Resources.Claims) > 0, "resources.claims")
	return out
}
