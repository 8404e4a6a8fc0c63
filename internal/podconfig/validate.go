package podconfig

import (
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
)

// The rules are those that the API server applies to a Pod that is created with spec.nodeName set, as far as the API reference
// states them; the errors carry the field paths that kubectl shows.

// validatePod returns what is wrong with the defaulted pod.
func validatePod(p *v1.Pod) field.ErrorList {
	errs := validateMetadata(p)
	return append(errs, validatePodSpec(&p.Spec, field.NewPath("spec"))...)
}

func validateMetadata(p *v1.Pod) field.ErrorList {
	path := field.NewPath("metadata")
	var errs field.ErrorList
	meta := p.ObjectMeta
	if meta.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "a manifest needs a name; generateName is not enough"))
		meta.Name = "x" // the name's other faults are no news
	}
	errs = append(errs, apivalidation.ValidateObjectMeta(&meta, true, apivalidation.NameIsDNSSubdomain, path)...)
	if !isPathSafe(p.UID) {
		errs = append(errs, field.Invalid(path.Child("uid"), p.UID, "must be letters, digits, '-', '_' and '.', at most 253 of them, "+
			"beginning with a letter or digit: folders are named after it"))
	}
	if p.DeletionTimestamp != nil {
		errs = append(errs, field.Forbidden(path.Child("deletionTimestamp"), "a static pod is deleted by removing its manifest"))
	}
	return errs
}

// isPathSafe reports whether the UID can name a folder.
func isPathSafe(uid pod.UID) bool {
	if len(uid) == 0 || len(uid) > validation.DNS1123SubdomainMaxLength {
		return false
	}
	for i, r := range uid {
		alphanumeric := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !alphanumeric && (i == 0 || r != '-' && r != '_' && r != '.') {
			return false
		}
	}
	return true
}

func validatePodSpec(spec *v1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	volumes, volumeErrs := validateVolumes(spec.Volumes, path.Child("volumes"))
	errs = append(errs, volumeErrs...)
	errs = append(errs, validateContainers(spec, volumes, path)...)
	errs = append(errs, validateEnum(spec.RestartPolicy, path.Child("restartPolicy"),
		v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever)...)
	if g := spec.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		errs = append(errs, field.Invalid(path.Child("terminationGracePeriodSeconds"), *g, "must be non-negative"))
	}
	if a := spec.ActiveDeadlineSeconds; a != nil && (*a < 1 || *a > math.MaxInt32) {
		errs = append(errs, field.Invalid(path.Child("activeDeadlineSeconds"), *a,
			validation.InclusiveRangeError(1, math.MaxInt32)))
	}
	errs = append(errs, validateHost(spec, path)...)
	errs = append(errs, validateDNS(spec, path)...)
	errs = append(errs, validatePodSecurity(spec, path)...)
	errs = append(errs, validatePodResources(spec, path)...)
	errs = append(errs, validatePlacement(spec, path)...)
	if len(spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(path.Child("ephemeralContainers"), "cannot be set on create"))
	}
	if len(spec.SchedulingGates) > 0 {
		errs = append(errs, field.Forbidden(path.Child("schedulingGates"),
			"a static pod is bound to its node and cannot wait for the scheduler"))
	}
	for i, g := range spec.ReadinessGates {
		for _, msg := range validation.IsQualifiedName(string(g.ConditionType)) {
			errs = append(errs, field.Invalid(path.Child("readinessGates").Index(i).Child("conditionType"), g.ConditionType, msg))
		}
	}
	for i, s := range spec.ImagePullSecrets {
		if s.Name == "" {
			errs = append(errs, field.Required(path.Child("imagePullSecrets").Index(i).Child("name"), ""))
		}
	}
	return errs
}

// validatePlacement checks what schedulers and node taints look at.
func validatePlacement(spec *v1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := []struct {
		field, value string
	}{
		{"nodeName", spec.NodeName},
		{"schedulerName", spec.SchedulerName},
		{"serviceAccountName", spec.ServiceAccountName},
		{"priorityClassName", spec.PriorityClassName},
		{"runtimeClassName", ptr.Deref(spec.RuntimeClassName, "")},
	}
	for _, n := range names {
		if n.value != "" {
			errs = append(errs, invalid(path.Child(n.field), n.value, validation.IsDNS1123Subdomain(n.value))...)
		}
	}
	errs = append(errs, metavalidation.ValidateLabels(spec.NodeSelector, path.Child("nodeSelector"))...)
	if p := spec.PreemptionPolicy; p != nil {
		errs = append(errs, validateEnum(*p, path.Child("preemptionPolicy"), v1.PreemptLowerPriority, v1.PreemptNever)...)
	}
	for i := range spec.Tolerations {
		errs = append(errs, validateToleration(&spec.Tolerations[i], path.Child("tolerations").Index(i))...)
	}
	return errs
}

func validateToleration(t *v1.Toleration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t.Key != "" {
		errs = append(errs, metavalidation.ValidateLabelName(t.Key, path.Child("key"))...)
	} else if t.Operator != v1.TolerationOpExists {
		errs = append(errs, field.Invalid(path.Child("operator"), t.Operator,
			"operator must be Exists when `key` is empty, which means \"match all values and all keys\""))
	}
	if t.TolerationSeconds != nil && t.Effect != v1.TaintEffectNoExecute {
		errs = append(errs, field.Invalid(path.Child("effect"), t.Effect,
			"effect must be 'NoExecute' when `tolerationSeconds` is set"))
	}
	switch t.Operator {
	case v1.TolerationOpEqual, "":
		errs = append(errs, invalid(path.Child("operator"), t.Value, validation.IsValidLabelValue(t.Value))...)
	case v1.TolerationOpExists:
		if t.Value != "" {
			errs = append(errs, field.Invalid(path.Child("operator"), t.Value, "value must be empty when `operator` is 'Exists'"))
		}
	default:
		errs = append(errs, validateEnum(t.Operator, path.Child("operator"),
			v1.TolerationOpEqual, v1.TolerationOpExists, v1.TolerationOpLt, v1.TolerationOpGt)...)
	}
	if t.Effect != "" {
		errs = append(errs, validateEnum(t.Effect, path.Child("effect"),
			v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute)...)
	}
	return errs
}

// invalid makes an error of each message.
func invalid(path *field.Path, value any, msgs []string) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range msgs {
		errs = append(errs, field.Invalid(path, value, msg))
	}
	return errs
}

// validateEnum checks that value, which is required, is one of those allowed.
func validateEnum[T ~string](value T, path *field.Path, allowed ...T) field.ErrorList {
	if slices.Contains(allowed, value) {
		return nil
	}
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return field.ErrorList{field.NotSupported(path, value, allowed)}
}
