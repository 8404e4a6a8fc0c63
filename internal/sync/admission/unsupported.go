package admission

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// UnsupportedClaims returns the paths of the pod's fields that use resource claims, which need an
// API server (KEP-4381).
func UnsupportedClaims(p *v1.Pod) []string {
	var out []string
	is := func(set bool, format string, args ...any) {
		if set {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	s := &p.Spec
	is(len(s.ResourceClaims) > 0, "spec.resourceClaims")
	// The scheduler's claim for an extended resource (KEP-5004) appears only in the status.
	if claim := p.Status.ExtendedResourceClaimStatus; claim != nil {
		for _, m := range claim.RequestMappings {
			is(true, "status.extendedResourceClaimStatus: container %q: %s by the claim %q", m.ContainerName, m.ResourceName, claim.ResourceClaimName)
		}
	}
	for i := range s.InitContainers {
		is(len(s.InitContainers[i].Resources.Claims) > 0, "spec.initContainers[%d].resources.claims", i)
	}
	for i := range s.Containers {
		is(len(s.Containers[i].Resources.Claims) > 0, "spec.containers[%d].resources.claims", i)
	}
	return out
}

// ineffective returns the paths of the pod's fields that have no effect: SELinux options, for which
// the machine may have no policy.
func ineffective(p *v1.Pod) []string {
	var out []string
	if s := p.Spec.SecurityContext; s != nil && s.SELinuxOptions != nil {
		out = append(out, "spec.securityContext.seLinuxOptions")
	}
	for c := range pod.Containers(&p.Spec) {
		if c.SecurityContext != nil && c.SecurityContext.SELinuxOptions != nil {
			out = append(out, fmt.Sprintf("securityContext.seLinuxOptions of container %q", c.Name))
		}
	}
	return out
}
