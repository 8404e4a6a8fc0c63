package podconfig

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// containerResources are the resources without a domain that a container can have; hugepages-<size> join them
// (kubernetes.io/docs/concepts/configuration/manage-resources-containers).
var containerResources = []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}

// validateResources checks the resources of one container; claims are the pod's.
func validateResources(r *v1.ResourceRequirements, claims []v1.PodResourceClaim, path *field.Path) field.ErrorList {
	errs := validateAmounts(r, path, func(name v1.ResourceName) bool {
		return slices.Contains(containerResources, name)
	})
	for i, c := range r.Claims {
		at := path.Child("claims").Index(i)
		if c.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else if !slices.ContainsFunc(claims, func(p v1.PodResourceClaim) bool { return p.Name == c.Name }) {
			errs = append(errs, field.NotFound(at.Child("name"), c.Name))
		}
	}
	return errs
}

// validateAmounts checks limits and requests; known tells the resources without a domain that are allowed.
func validateAmounts(r *v1.ResourceRequirements, path *field.Path, known func(v1.ResourceName) bool) field.ErrorList {
	var errs field.ErrorList
	for _, list := range []struct {
		field   string
		amounts v1.ResourceList
	}{{"limits", r.Limits}, {"requests", r.Requests}} {
		for _, name := range slices.Sorted(maps.Keys(list.amounts)) {
			at := path.Child(list.field).Key(string(name))
			errs = append(errs, validateResourceName(name, at, known)...)
			errs = append(errs, validateQuantity(name, list.amounts[name], at)...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		request, at := r.Requests[name], path.Child("requests")
		limit, ok := r.Limits[name]
		switch {
		case ok && request.Cmp(limit) > 0:
			errs = append(errs, field.Invalid(at, request.String(),
				fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String())))
		case isOvercommittable(name):
		case !ok:
			errs = append(errs, field.Required(path.Child("limits"), fmt.Sprintf("Limit must be set for non overcommitable resource %s", name)))
		case request.Cmp(limit) != 0:
			errs = append(errs, field.Invalid(at, request.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String())))
		}
	}
	return errs
}

// isOvercommittable reports whether requests of the resource may be lower than its limit: not for huge pages and extended resources
// (kubernetes.io/docs/concepts/configuration/manage-resources-containers, "Extended resources").
func isOvercommittable(name v1.ResourceName) bool {
	return !isHugePages(name) && !strings.Contains(string(name), "/")
}

func isHugePages(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

func validateResourceName(name v1.ResourceName, path *field.Path, known func(v1.ResourceName) bool) field.ErrorList {
	errs := invalid(path, name, validation.IsQualifiedName(string(name)))
	if len(errs) > 0 || strings.Contains(string(name), "/") || isHugePages(name) || known(name) {
		return errs
	}
	return field.ErrorList{field.Invalid(path, name, "must be a standard resource for containers, or have a domain, as example.com/foo")}
}

func validateQuantity(name v1.ResourceName, q resource.Quantity, path *field.Path) field.ErrorList {
	if q.Sign() < 0 {
		return field.ErrorList{field.Invalid(path, q.String(), "must be greater than or equal to 0")}
	}
	if strings.Contains(string(name), "/") && q.MilliValue()%1000 != 0 {
		return field.ErrorList{field.Invalid(path, q.String(), "must be an integer")}
	}
	if size, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix); ok {
		page, err := resource.ParseQuantity(size)
		if err != nil || page.Sign() <= 0 {
			return field.ErrorList{field.Invalid(path, name, "must name a page size, as hugepages-2Mi")}
		}
		if q.Value()%page.Value() != 0 {
			return field.ErrorList{field.Invalid(path, q.String(), fmt.Sprintf("must be a multiple of the page size %s", size))}
		}
	}
	return nil
}

// validateResizePolicy checks the resize policy of one container.
func validateResizePolicy(policies []v1.ContainerResizePolicy, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[v1.ResourceName]struct{}{}
	for i, p := range policies {
		at := path.Index(i)
		errs = append(errs, validateEnum(p.ResourceName, at.Child("resourceName"), resizable...)...)
		errs = append(errs, validateEnum(p.RestartPolicy, at.Child("restartPolicy"), v1.NotRequired, v1.RestartContainer)...)
		if _, ok := seen[p.ResourceName]; ok {
			errs = append(errs, field.Duplicate(at.Child("resourceName"), p.ResourceName))
		}
		seen[p.ResourceName] = struct{}{}
	}
	return errs
}

// validatePodResources checks resources, overhead and resource claims of the pod as a whole.
func validatePodResources(spec *v1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(spec.Overhead)) {
		at := path.Child("overhead").Key(string(name))
		errs = append(errs, validateQuantity(name, spec.Overhead[name], at)...)
	}
	names := map[string]struct{}{}
	for i, c := range spec.ResourceClaims {
		at := path.Child("resourceClaims").Index(i)
		errs = append(errs, validateUniqueLabel(c.Name, names, at.Child("name"))...)
		if err := exactlyOne(at, "claim (`resourceClaimName` or `resourceClaimTemplateName`)",
			c.ResourceClaimName != nil, c.ResourceClaimTemplateName != nil); err != nil {
			errs = append(errs, err)
		}
	}
	r := spec.Resources
	if r == nil {
		return errs
	}
	at := path.Child("resources")
	if len(r.Claims) > 0 {
		errs = append(errs, field.Forbidden(at.Child("claims"), "claims cannot be set for Resources at pod-level"))
	}
	for _, list := range []struct {
		field   string
		amounts v1.ResourceList
	}{{"limits", r.Limits}, {"requests", r.Requests}} {
		for _, name := range slices.Sorted(maps.Keys(list.amounts)) {
			if !slices.Contains(resizable, name) && !isHugePages(name) { // PodSpec.resources: the same two, and huge pages
				errs = append(errs, field.NotSupported(at.Child(list.field), name,
					[]v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceHugePagesPrefix + "<size>"}))
			}
		}
	}
	errs = append(errs, validateAmounts(r, at, func(v1.ResourceName) bool { return true })...)
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		request := r.Requests[name]
		if sum, ok := computeRequest(spec, name); ok && sum.Cmp(request) > 0 {
			errs = append(errs, field.Invalid(at.Child("requests").Key(string(name)), request.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container requests of %s", sum.String())))
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
