package validation

import (
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidatePod validates the defaulted pod.
func ValidatePod(p *v1.Pod) field.ErrorList {
	errs := validateMetadata(p)
	errs = append(errs, validatePodSpec(p, field.NewPath("spec"))...)
	sortRuns(errs)
	return errs
}

// sortRuns sorts adjacent errors of one field by text. Labels and annotations are validated in
// random order; the same manifest must always have the same problem.
func sortRuns(errs field.ErrorList) {
	for len(errs) > 0 {
		n := 1
		for n < len(errs) && errs[n].Field == errs[0].Field {
			n++
		}
		slices.SortStableFunc(errs[:n], func(a, b *field.Error) int { return strings.Compare(a.Error(), b.Error()) })
		errs = errs[n:]
	}
}

func validateMetadata(p *v1.Pod) field.ErrorList {
	path := field.NewPath("metadata")
	var errs field.ErrorList
	meta := p.ObjectMeta
	if meta.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "a manifest needs a name; generateName is not enough"))
		meta.Name = "x" // its other errors are redundant
	}
	errs = append(errs, apivalidation.ValidateObjectMeta(&meta, true, apivalidation.NameIsDNSSubdomain, path)...)
	for i, f := range meta.Finalizers {
		if !strings.Contains(f, "/") && !slices.Contains(standardFinalizers, f) {
			errs = append(errs, field.Invalid(path.Child("finalizers").Index(i), f, "name is neither a standard finalizer name nor is it fully qualified"))
		}
	}
	errs = append(errs, validateAnnotations(p, path.Child("annotations"))...)
	errs = append(errs, validateUID(p.UID, path.Child("uid"))...)
	if p.DeletionTimestamp != nil {
		errs = append(errs, field.Forbidden(path.Child("deletionTimestamp"), "a static pod is deleted by removing its manifest"))
	}
	return errs
}

// standardFinalizers are the finalizers without a domain
// (kubernetes.io/docs/concepts/overview/working-with-objects/finalizers).
var standardFinalizers = []string{string(v1.FinalizerKubernetes), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents}

func validatePodSpec(p *v1.Pod, path *field.Path) field.ErrorList {
	spec := &p.Spec
	volumes, errs := validateVolumes(p, path.Child("volumes"))
	errs = append(errs, validateContainers(spec, volumes, path)...)
	errs = append(errs, validateEnum(spec.RestartPolicy, path.Child("restartPolicy"),
		v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever)...)
	if a := spec.ActiveDeadlineSeconds; a != nil && (*a < 1 || *a > math.MaxInt32) {
		errs = append(errs, field.Invalid(path.Child("activeDeadlineSeconds"), *a,
			validation.InclusiveRangeError(1, math.MaxInt32)))
	}
	errs = append(errs, validateHost(spec, path)...)
	errs = append(errs, validateDNS(spec, path)...)
	errs = append(errs, validatePodSecurity(spec, path)...)
	errs = append(errs, validateOS(spec, path)...)
	errs = append(errs, validateHostProcess(spec, path)...)
	errs = append(errs, validatePodResources(p, path)...)
	errs = append(errs, validatePlacement(p, path)...)
	if len(spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(path.Child("ephemeralContainers"), "cannot be set on create"))
	}
	for i, g := range spec.ReadinessGates {
		errs = append(errs, invalid(path.Child("readinessGates").Index(i).Child("conditionType"), g.ConditionType,
			validation.IsQualifiedName(string(g.ConditionType)))...)
	}
	return errs
}

// invalid returns an error for each message.
func invalid(path *field.Path, value any, msgs []string) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range msgs {
		errs = append(errs, field.Invalid(path, value, msg))
	}
	return errs
}

// validateEnum checks a required value against the allowed ones.
func validateEnum[T ~string](value T, path *field.Path, allowed ...T) field.ErrorList {
	if value == "" && !slices.Contains(allowed, value) {
		return field.ErrorList{field.Required(path, "")}
	}
	return validateChoice(&value, path, allowed...)
}

// validateChoice checks an optional value against the allowed ones.
func validateChoice[T ~string](value *T, path *field.Path, allowed ...T) field.ErrorList {
	if value == nil || slices.Contains(allowed, *value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, *value, allowed)}
}

// required checks that the value is not zero.
func required[T comparable](path *field.Path, value T) field.ErrorList {
	var zero T
	if value == zero {
		return field.ErrorList{field.Required(path, "")}
	}
	return nil
}

// onlyOne checks that at most one of the alternatives, named by their fields, is set: each further
// one is an error. It returns the first one, or "".
func onlyOne(path *field.Path, what string, alternatives ...alternative) (first string, errs field.ErrorList) {
	for _, a := range alternatives {
		switch {
		case !a.set:
		case first == "":
			first = a.field
		default:
			errs = append(errs, field.Forbidden(path.Child(a.field), "may not specify more than 1 "+what))
		}
	}
	return first, errs
}

// alternative is one of several mutually exclusive fields.
type alternative struct {
	field string
	set   bool
}
