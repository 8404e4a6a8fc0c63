package validation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	podresource "k8s.io/component-helpers/resource"
)

// validatePodResources checks pod-level resources, overhead and resource claims.
func validatePodResources(p *v1.Pod, path *field.Path) field.ErrorList {
	spec, at := &p.Spec, path.Child("overhead")
	errs := validateAmountList(spec.Overhead, at, validateContainerResource)
	errs = append(errs, validateHugePagesBase(at, spec.Overhead)...)
	errs = append(errs, validateResourceClaims(spec.ResourceClaims, path.Child("resourceClaims"))...)
	if spec.Resources != nil {
		errs = append(errs, validatePodLevelResources(p, path)...)
	}
	return errs
}

func validateResourceClaims(claims []v1.PodResourceClaim, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := map[string]struct{}{}
	for i, c := range claims {
		at := path.Index(i)
		errs = append(errs, validateUniqueLabel(c.Name, names, at.Child("name"))...)
		if c.Name != "" {
			names[c.Name] = struct{}{}
		}
		switch {
		case c.ResourceClaimName == nil && c.ResourceClaimTemplateName == nil:
			errs = append(errs, field.Invalid(at, c.Name, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"))
		case c.ResourceClaimName != nil && c.ResourceClaimTemplateName != nil:
			errs = append(errs, field.Invalid(at, c.Name, "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"))
		}
		for _, n := range []struct {
			field string
			name  *string
		}{{"resourceClaimName", c.ResourceClaimName}, {"resourceClaimTemplateName", c.ResourceClaimTemplateName}} {
			if n.name != nil {
				errs = append(errs, invalid(at.Child(n.field), *n.name, validation.IsDNS1123Subdomain(*n.name))...)
			}
		}
	}
	return errs
}

// validatePodLevelResources checks the resources that the containers share, and that the
// containers' requests and limits fit (KEP-2837).
func validatePodLevelResources(p *v1.Pod, path *field.Path) field.ErrorList {
	spec := &p.Spec
	r, at := spec.Resources, path.Child("resources")
	if isWindows(spec) {
		return field.ErrorList{field.Forbidden(at, "may not be set for a windows pod")}
	}
	errs := validateAmounts(r, at, validatePodLevelResource)
	if len(r.Claims) > 0 {
		errs = append(errs, field.Forbidden(at.Child("claims"), "claims cannot be set for Resources at pod-level"))
		errs = append(errs, validateClaims(r.Claims, spec.ResourceClaims, at.Child("claims"))...)
	}
	requested := podresource.AggregateContainerRequests(p, podresource.PodResourcesOptions{})
	limited := podresource.AggregateContainerLimits(p, podresource.PodResourcesOptions{})
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		request := r.Requests[name]
		if sum, ok := requested[name]; ok && sum.Cmp(request) > 0 {
			errs = append(errs, field.Invalid(at.Child("requests").Key(string(name)), request.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container requests of %s", sum.String())))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Limits)) {
		limit := r.Limits[name]
		if sum := limited[name]; isHugePages(name) && sum.Cmp(limit) > 0 {
			errs = append(errs, field.Invalid(at.Child("limits").Key(string(name)), limit.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container limits of %s", sum.String())))
		}
	}
	for i := range spec.Containers {
		for _, name := range slices.Sorted(maps.Keys(spec.Containers[i].Resources.Limits)) {
			limit := spec.Containers[i].Resources.Limits[name]
			if whole, ok := r.Limits[name]; ok && limit.Cmp(whole) > 0 {
				errs = append(errs, field.Invalid(path.Child("containers").Index(i).Child("resources", "limits").Key(string(name)), limit.String(),
					fmt.Sprintf("must be less than or equal to pod limits of %s", whole.String())))
			}
		}
	}
	return errs
}

// objectCounts are the resources that count objects in a ResourceQuota
// (kubernetes.io/docs/concepts/policy/resource-quotas).
var objectCounts = []v1.ResourceName{
	v1.ResourcePods, v1.ResourceServices, v1.ResourceReplicationControllers, v1.ResourceQuotas, v1.ResourceSecrets, v1.ResourceConfigMaps,
	v1.ResourcePersistentVolumeClaims, v1.ResourceServicesNodePorts, v1.ResourceServicesLoadBalancers,
}

// isStandard reports whether the resource has a domain or is defined by Kubernetes, for containers
// or other objects.
func isStandard(name v1.ResourceName) bool {
	if strings.Contains(string(name), "/") || name == v1.ResourceStorage || slices.Contains(containerResources, name) || slices.Contains(objectCounts, name) {
		return true
	}
	for _, prefix := range []string{v1.DefaultResourceRequestsPrefix, "limits."} {
		if of, ok := strings.CutPrefix(string(name), prefix); ok {
			return of == string(v1.ResourceStorage) || isHugePages(v1.ResourceName(of)) || slices.Contains(containerResources, v1.ResourceName(of))
		}
	}
	return false
}

func validatePodLevelResource(name v1.ResourceName, path *field.Path) field.ErrorList {
	errs := invalid(path, name, validation.IsQualifiedName(string(name)))
	if len(errs) > 0 {
		return errs
	}
	switch {
	case podresource.IsSupportedPodLevelResource(name):
		return nil
	case !isStandard(name):
		return field.ErrorList{field.Invalid(path, name, "must be a standard resource type or fully qualified")}
	}
	return field.ErrorList{field.NotSupported(path, name, []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceHugePagesPrefix})}
}
