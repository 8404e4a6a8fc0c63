package validation

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
)

// podDeletionCost ranks the pods of a ReplicaSet
// (kubernetes.io/docs/reference/labels-annotations-taints).
const podDeletionCost = "controller.kubernetes.io/pod-deletion-cost"

// validateAnnotations checks the annotations that Kubernetes defines; deprecated annotations of
// security profiles must not contradict the fields that replaced them.
func validateAnnotations(p *v1.Pod, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(p.Annotations)) {
		value, at := p.Annotations[key], path.Key(key)
		if key == podDeletionCost {
			if n, err := strconv.ParseInt(value, 10, 32); err != nil || strconv.FormatInt(n, 10) != value {
				errs = append(errs, field.Invalid(at, value, "must be a 32bit integer"))
			}
		}
		if key == v1.SeccompPodAnnotationKey || strings.HasPrefix(key, v1.SeccompContainerAnnotationKeyPrefix) {
			if problem := validateSeccompValue(value); problem != "" {
				errs = append(errs, field.Invalid(at, value, problem))
			}
		}
		if name, ok := strings.CutPrefix(key, v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix); ok {
			if pod.FindContainer(&p.Spec, name) == nil {
				errs = append(errs, field.Invalid(at, name, "container not found"))
			} else if kind, _ := pod.ParseAppArmor(value); kind == "" && value != "" {
				errs = append(errs, field.Invalid(at, value, "invalid AppArmor profile name"))
			}
		}
	}
	return append(errs, validateProfileAnnotations(p, field.NewPath("spec"))...)
}

// validateSeccompValue returns what is wrong with the value of a seccomp annotation, or "".
func validateSeccompValue(value string) (problem string) {
	switch kind, name := parseSeccomp(value); {
	case kind == "":
		return "must be a valid seccomp profile"
	case kind == v1.SeccompProfileTypeLocalhost:
		if errs := validateLocalPath(name, nil); len(errs) > 0 {
			return errs[0].Detail
		}
	}
	return ""
}

// parseSeccomp parses the value of a seccomp annotation; the type is "" if it is invalid.
func parseSeccomp(value string) (kind v1.SeccompProfileType, name string) {
	switch value {
	case v1.SeccompProfileRuntimeDefault, v1.DeprecatedSeccompProfileDockerDefault:
		return v1.SeccompProfileTypeRuntimeDefault, ""
	case v1.SeccompProfileNameUnconfined:
		return v1.SeccompProfileTypeUnconfined, ""
	}
	if name, ok := strings.CutPrefix(value, v1.SeccompLocalhostProfileNamePrefix); ok {
		return v1.SeccompProfileTypeLocalhost, name
	}
	return "", ""
}

// validateProfileAnnotations checks that annotations and fields are equal where both are set.
func validateProfileAnnotations(p *v1.Pod, path *field.Path) field.ErrorList {
	whole := p.Spec.SecurityContext
	if whole == nil {
		whole = &v1.PodSecurityContext{}
	}
	errs := validateSeccompMatch(p, v1.SeccompPodAnnotationKey, whole.SeccompProfile, path.Child("securityContext", "seccompProfile"))
	for _, list := range []struct {
		field      string
		containers []v1.Container
	}{{"initContainers", p.Spec.InitContainers}, {"containers", p.Spec.Containers}} {
		for i := range list.containers {
			c, at := &list.containers[i], path.Child(list.field).Index(i).Child("securityContext")
			own := c.SecurityContext
			if own == nil {
				own = &v1.SecurityContext{}
			}
			errs = append(errs, validateSeccompMatch(p, v1.SeccompContainerAnnotationKeyPrefix+c.Name, own.SeccompProfile, at.Child("seccompProfile"))...)
			effective := own.AppArmorProfile
			if effective == nil {
				effective = whole.AppArmorProfile
			}
			errs = append(errs, validateAppArmorMatch(p, v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name, effective, at.Child("appArmorProfile"))...)
		}
	}
	return errs
}

func validateSeccompMatch(p *v1.Pod, key string, profile *v1.SeccompProfile, path *field.Path) field.ErrorList {
	value, ok := p.Annotations[key]
	if !ok || profile == nil || !slices.Contains(seccompTypes, profile.Type) {
		return nil
	}
	switch kind, name := parseSeccomp(value); {
	case kind != profile.Type:
		return field.ErrorList{field.Forbidden(path.Child("type"), "seccomp type in annotation and field must match")}
	case name != ptr.Deref(profile.LocalhostProfile, ""):
		return field.ErrorList{field.Forbidden(path.Child("localhostProfile"), "seccomp profile in annotation and field must match")}
	}
	return nil
}

func validateAppArmorMatch(p *v1.Pod, key string, profile *v1.AppArmorProfile, path *field.Path) field.ErrorList {
	value, ok := p.Annotations[key]
	if !ok || profile == nil || !slices.Contains(appArmorTypes, profile.Type) || isWindows(&p.Spec) {
		return nil
	}
	switch kind, name := pod.ParseAppArmor(value); {
	case kind != profile.Type:
		return field.ErrorList{field.Forbidden(path.Child("type"), "apparmor type in annotation and field must match")}
	case name != ptr.Deref(profile.LocalhostProfile, ""):
		return field.ErrorList{field.Forbidden(path.Child("localhostProfile"), "apparmor profile in annotation and field must match")}
	}
	return nil
}
