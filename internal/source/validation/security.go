package validation

import (
	"regexp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// maxSysctlLength limits the name of a sysctl, in bytes; sysctlName is its form
// (kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster).
const maxSysctlLength = 253

// maxAppArmorLength limits the name of a profile, which is written to a file of at most a page:
// PATH_MAX.
const maxAppArmorLength = 4095

var sysctlName = regexp.MustCompile(`^[a-z0-9]([-_a-z0-9]*[a-z0-9])?([./][a-z0-9]([-_a-z0-9]*[a-z0-9])?)*$`)

func validatePodSecurity(spec *v1.PodSpec, path *field.Path) field.ErrorList {
	sc := spec.SecurityContext
	if sc == nil {
		return nil
	}
	at := path.Child("securityContext")
	errs := validateIDs(sc.RunAsUser, sc.RunAsGroup, at)
	if sc.FSGroup != nil {
		errs = append(errs, invalid(at.Child("fsGroup"), *sc.FSGroup, validation.IsValidGroupID(*sc.FSGroup))...)
	}
	for i, g := range sc.SupplementalGroups {
		errs = append(errs, invalid(at.Child("supplementalGroups").Index(i), g, validation.IsValidGroupID(g))...)
	}
	errs = append(errs, validateChoice(sc.FSGroupChangePolicy, at.Child("fsGroupChangePolicy"), v1.FSGroupChangeOnRootMismatch, v1.FSGroupChangeAlways)...)
	errs = append(errs, validateChoice(sc.SupplementalGroupsPolicy, at.Child("supplementalGroupsPolicy"),
		v1.SupplementalGroupsPolicyMerge, v1.SupplementalGroupsPolicyStrict)...)
	// MountOption needs the feature gate SELinuxMount, which is off by default.
	errs = append(errs, validateChoice(sc.SELinuxChangePolicy, at.Child("seLinuxChangePolicy"), v1.SELinuxChangePolicyRecursive)...)
	errs = append(errs, validateSeccomp(sc.SeccompProfile, at.Child("seccompProfile"))...)
	errs = append(errs, validateAppArmor(sc.AppArmorProfile, at.Child("appArmorProfile"))...)
	errs = append(errs, validateSysctls(sc.Sysctls, spec, at.Child("sysctls"))...)
	return append(errs, validateWindowsOptions(sc.WindowsOptions, at.Child("windowsOptions"))...)
}

func isWindows(spec *v1.PodSpec) bool { return spec.OS != nil && spec.OS.Name == v1.Windows }

func validateSecurityContext(sc *v1.SecurityContext, spec *v1.PodSpec, path *field.Path) field.ErrorList {
	if sc == nil {
		return nil
	}
	errs := validateIDs(sc.RunAsUser, sc.RunAsGroup, path)
	if !ptr.Deref(sc.AllowPrivilegeEscalation, true) {
		at := path.Child("allowPrivilegeEscalation")
		if ptr.Deref(sc.Privileged, false) {
			errs = append(errs, field.Invalid(at, false, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"))
		}
		if sc.Capabilities != nil && slices.Contains(sc.Capabilities.Add, "CAP_SYS_ADMIN") {
			errs = append(errs, field.Invalid(at, false, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"))
		}
	}
	if p := sc.ProcMount; p != nil {
		at := path.Child("procMount")
		errs = append(errs, validateChoice(p, at, v1.DefaultProcMount, v1.UnmaskedProcMount)...)
		if *p == v1.UnmaskedProcMount && ptr.Deref(spec.HostUsers, true) {
			errs = append(errs, field.Invalid(at, *p, "`hostUsers` must be false to use `Unmasked`"))
		}
	}
	errs = append(errs, validateSeccomp(sc.SeccompProfile, path.Child("seccompProfile"))...)
	errs = append(errs, validateAppArmor(sc.AppArmorProfile, path.Child("appArmorProfile"))...)
	return append(errs, validateWindowsOptions(sc.WindowsOptions, path.Child("windowsOptions"))...)
}

func validateIDs(user, group *int64, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if user != nil {
		errs = append(errs, invalid(path.Child("runAsUser"), *user, validation.IsValidUserID(*user))...)
	}
	if group != nil {
		errs = append(errs, invalid(path.Child("runAsGroup"), *group, validation.IsValidGroupID(*group))...)
	}
	return errs
}

var (
	seccompTypes  = []v1.SeccompProfileType{v1.SeccompProfileTypeLocalhost, v1.SeccompProfileTypeRuntimeDefault, v1.SeccompProfileTypeUnconfined}
	appArmorTypes = []v1.AppArmorProfileType{v1.AppArmorProfileTypeLocalhost, v1.AppArmorProfileTypeRuntimeDefault, v1.AppArmorProfileTypeUnconfined}
)

func validateSeccomp(p *v1.SeccompProfile, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := validateEnum(p.Type, path.Child("type"), seccompTypes...)
	at := path.Child("localhostProfile")
	switch profile := ptr.Deref(p.LocalhostProfile, ""); {
	case p.Type != v1.SeccompProfileTypeLocalhost && p.LocalhostProfile != nil:
		errs = append(errs, field.Invalid(at, profile, "can only be set when seccomp type is Localhost"))
	case p.Type == v1.SeccompProfileTypeLocalhost && profile == "":
		errs = append(errs, field.Required(at, "must be set when seccomp type is Localhost"))
	case p.Type == v1.SeccompProfileTypeLocalhost:
		errs = append(errs, validateLocalPath(profile, at)...)
	}
	return errs
}

func validateAppArmor(p *v1.AppArmorProfile, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := validateEnum(p.Type, path.Child("type"), appArmorTypes...)
	at := path.Child("localhostProfile")
	switch profile := ptr.Deref(p.LocalhostProfile, ""); {
	case p.Type == v1.AppArmorProfileTypeRuntimeDefault && p.LocalhostProfile != nil, p.Type == v1.AppArmorProfileTypeUnconfined && p.LocalhostProfile != nil:
		errs = append(errs, field.Invalid(at, profile, "can only be set when AppArmor type is Localhost"))
	case p.Type == v1.AppArmorProfileTypeLocalhost && profile == "":
		errs = append(errs, field.Required(at, "must be set when AppArmor type is Localhost"))
	case p.Type == v1.AppArmorProfileTypeLocalhost && profile != strings.TrimSpace(profile):
		errs = append(errs, field.Invalid(at, profile, "must not be padded with whitespace"))
	case len(profile) > maxAppArmorLength:
		errs = append(errs, field.TooLong(at, profile, maxAppArmorLength))
	}
	return errs
}

// validateSysctls checks names, and that the pod does not set sysctls of host namespaces.
func validateSysctls(sysctls []v1.Sysctl, spec *v1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]struct{}{}
	for i, s := range sysctls {
		at := path.Index(i).Child("name")
		name := strings.ReplaceAll(s.Name, "/", ".")
		switch _, taken := seen[s.Name]; {
		case s.Name == "":
			errs = append(errs, field.Required(at, ""))
		case len(s.Name) > maxSysctlLength || !sysctlName.MatchString(s.Name):
			errs = append(errs, field.Invalid(at, s.Name, "must be at most 253 characters of the form kernel.shm_rmid_forced"))
		case taken:
			errs = append(errs, field.Duplicate(at, s.Name))
		}
		seen[s.Name] = struct{}{}
		if spec.HostNetwork && strings.HasPrefix(name, "net.") {
			errs = append(errs, field.Invalid(at, s.Name, "may not be set when `hostNetwork` is true"))
		}
		if spec.HostIPC && (strings.HasPrefix(name, "kernel.shm") || strings.HasPrefix(name, "kernel.msg") ||
			name == "kernel.sem" || strings.HasPrefix(name, "fs.mqueue.")) {
			errs = append(errs, field.Invalid(at, s.Name, "may not be set when `hostIPC` is true"))
		}
	}
	return errs
}
