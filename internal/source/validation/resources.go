package validation

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

// resizable are the resources of a container that can be resized in place
// (ContainerResizePolicy.resourceName).
var resizable = []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory}

// containerResources are the resources of containers without a domain, besides hugepages-<size>
// (kubernetes.io/docs/concepts/configuration/manage-resources-containers).
var containerResources = []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}

// validateResources checks the resources of one container; claims are the pod's.
func validateResources(r *v1.ResourceRequirements, claims []v1.PodResourceClaim, path *field.Path) field.ErrorList {
	return append(validateAmounts(r, path, validateContainerResource), validateClaims(r.Claims, claims, path.Child("claims"))...)
}

// validateClaims checks the claims of a container; pod has the claims of the pod.
func validateClaims(claims []v1.ResourceClaim, pod []v1.PodResourceClaim, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	requests := map[string][]string{} // requests of earlier entries by claim; "" is the whole claim
	for i, c := range claims {
		at := path.Index(i)
		if c.Name == "" {
			errs = append(errs, field.Required(at, ""))
			continue
		}
		before := requests[c.Name]
		requests[c.Name] = append(before, c.Request)
		twice := len(before) > 0 && c.Request == "" || slices.Contains(before, c.Request) || slices.Contains(before, "")
		if twice {
			errs = append(errs, field.Duplicate(at, c.Name))
		} else if c.Request != "" {
			errs = append(errs, invalid(at.Child("request"), c.Request, validation.IsDNS1123Label(c.Request))...)
		}
		if !slices.ContainsFunc(pod, func(p v1.PodResourceClaim) bool { return p.Name == c.Name }) {
			errs = append(errs, field.NotFound(at, c.Name))
		}
	}
	return errs
}

// validateAmounts checks limits and requests; validateName checks the names of resources.
func validateAmounts(r *v1.ResourceRequirements, path *field.Path, validateName func(v1.ResourceName, *field.Path) field.ErrorList) field.ErrorList {
	errs := validateAmountList(r.Limits, path.Child("limits"), validateName)
	errs = append(errs, validateAmountList(r.Requests, path.Child("requests"), validateName)...)
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		request, at := r.Requests[name], path.Child("requests")
		limit, ok := r.Limits[name]
		switch {
		case ok && !isOvercommittable(name) && request.Cmp(limit) != 0:
			errs = append(errs, field.Invalid(at, request.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String())))
		case ok && request.Cmp(limit) > 0:
			errs = append(errs, field.Invalid(at, request.String(),
				fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String())))
		case !ok && !isOvercommittable(name):
			errs = append(errs, field.Required(path.Child("limits"), fmt.Sprintf("Limit must be set for non overcommitable resource %s", name)))
		}
	}
	return append(errs, validateHugePagesBase(path, r.Limits, r.Requests)...)
}

// validateHugePagesBase checks that huge pages come with CPU or memory
// (kubernetes.io/docs/tasks/manage-hugepages/scheduling-hugepages).
func validateHugePagesBase(path *field.Path, lists ...v1.ResourceList) field.ErrorList {
	hugePages, base := false, false
	for _, list := range lists {
		for name := range list {
			hugePages = hugePages || isHugePages(name)
			base = base || name == v1.ResourceCPU || name == v1.ResourceMemory
		}
	}
	if hugePages && !base {
		return field.ErrorList{field.Forbidden(path, "HugePages require cpu or memory")}
	}
	return nil
}

func validateAmountList(list v1.ResourceList, path *field.Path, validateName func(v1.ResourceName, *field.Path) field.ErrorList) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(list)) {
		at := path.Key(string(name))
		errs = append(errs, validateName(name, at)...)
		errs = append(errs, validateQuantity(name, list[name], at)...)
	}
	return errs
}

// isOvercommittable reports whether requests of the resource may be lower than its limit: not for
// huge pages and extended resources
// (kubernetes.io/docs/concepts/configuration/manage-resources-containers, "Extended resources").
func isOvercommittable(name v1.ResourceName) bool {
	return !isHugePages(name) && !strings.Contains(string(name), "/")
}

func isHugePages(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

// isNative reports whether the resource is defined by Kubernetes: it has no domain, or Kubernetes'
// domain.
func isNative(name v1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), v1.ResourceDefaultNamespacePrefix)
}

// validateContainerResource checks the name of a container's resource.
func validateContainerResource(name v1.ResourceName, path *field.Path) field.ErrorList {
	errs := invalid(path, name, validation.IsQualifiedName(string(name)))
	switch {
	case len(errs) > 0:
	case !strings.Contains(string(name), "/"):
		if !isHugePages(name) && !slices.Contains(containerResources, name) {
			errs = append(errs, field.Invalid(path, name, "must be a standard resource for containers, or have a domain, as example.com/foo"))
		}
	case !isNative(name) && !isExtended(name):
		errs = append(errs, field.Invalid(path, name, "doesn't follow extended resource name standard"))
	}
	return errs
}

// isExtended reports whether the resource belongs to a vendor: its name is valid in a
// ResourceQuota, with the prefix "requests.", and does not have that prefix already.
func isExtended(name v1.ResourceName) bool {
	return !isNative(name) && !strings.HasPrefix(string(name), v1.DefaultResourceRequestsPrefix) &&
		len(validation.IsQualifiedName(v1.DefaultResourceRequestsPrefix+string(name))) == 0
}

func validateQuantity(name v1.ResourceName, q resource.Quantity, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if q.Sign() < 0 {
		errs = append(errs, field.Invalid(path, q.String(), "must be greater than or equal to 0"))
	}
	if isExtended(name) && q.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(path, q.String(), "must be an integer"))
	}
	if size, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix); ok {
		if page, err := resource.ParseQuantity(size); err != nil || page.Sign() <= 0 || q.Value()%page.Value() != 0 {
			errs = append(errs, field.Invalid(path, q.String(), fmt.Sprintf("is not positive integer multiple of %s", name)))
		}
	}
	return errs
}

func validateResizePolicy(policies []v1.ContainerResizePolicy, restart v1.RestartPolicy, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[v1.ResourceName]struct{}{}
	for i, p := range policies {
		at := path.Index(i)
		if _, ok := seen[p.ResourceName]; ok {
			errs = append(errs, field.Duplicate(at, p.ResourceName))
		}
		seen[p.ResourceName] = struct{}{}
		errs = append(errs, validateEnum(p.ResourceName, at.Child("resourceName"), resizable...)...)
		errs = append(errs, validateEnum(p.RestartPolicy, at.Child("restartPolicy"), v1.NotRequired, v1.RestartContainer)...)
		if restart == v1.RestartPolicyNever && p.RestartPolicy != v1.NotRequired {
			errs = append(errs, field.Invalid(at.Child("restartPolicy"), p.RestartPolicy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'"))
		}
	}
	return errs
}
