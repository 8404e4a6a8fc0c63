package validation

import (
	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/pod"
)

// ValidateIdentity checks the fields that become part of directories, file names, cgroups and
// records of the pod.
func ValidateIdentity(p *v1.Pod) field.ErrorList {
	meta, spec := field.NewPath("metadata"), field.NewPath("spec")
	errs := invalid(meta.Child("name"), Shorten(p.Name), apivalidation.NameIsDNSSubdomain(p.Name, false))
	errs = append(errs, invalid(meta.Child("namespace"), Shorten(p.Namespace), apivalidation.ValidateNamespaceName(p.Namespace, false))...)
	errs = append(errs, validateUID(p.UID, meta.Child("uid"))...)
	label := func(list string, i int, name string) {
		if msgs := validation.IsDNS1123Label(name); len(msgs) > 0 {
			errs = append(errs, invalid(spec.Child(list).Index(i).Child("name"), Shorten(name), msgs)...)
		}
	}
	for i := range p.Spec.Containers {
		label("containers", i, p.Spec.Containers[i].Name)
	}
	for i := range p.Spec.InitContainers {
		label("initContainers", i, p.Spec.InitContainers[i].Name)
	}
	for i := range p.Spec.EphemeralContainers {
		label("ephemeralContainers", i, p.Spec.EphemeralContainers[i].Name)
	}
	for i := range p.Spec.Volumes {
		label("volumes", i, p.Spec.Volumes[i].Name)
	}
	return errs
}

// Shorten truncates a name of any length for a message.
func Shorten(name string) string {
	const most = 100
	if len(name) <= most {
		return name
	}
	return name[:most] + "..."
}

func validateUID(uid pod.UID, path *field.Path) field.ErrorList {
	if isPathSafe(uid) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, pod.UID(Shorten(string(uid))), "must be letters, digits, '-', '_' and '.', at most 253 of them, "+
		"beginning with a letter or digit: folders are named after it")}
}

// isPathSafe reports whether the UID is a valid directory name.
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
