package podconfig

import (
	"regexp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// maxSysctlLength bounds the name of a sysctl; sysctlName is its form (kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster).
const maxSysctlLength = 253

var sysctlName = regexp.MustCompile(`^[a-z0-9]([-_a-z0-9]*[a-z0-9])?([./][a-z0-9]([-_a-z0-9]*[a-z0-9])?)*$`)

// validatePodSecurity checks the pod's security context and operating system.
func validatePodSecurity(spec *v1.PodSpec, path *field.Path) field.ErrorList {
	errs := validateOS(spec, path)
	sc := spec.SecurityContext
	if sc == nil {
		return errs
	}
	at := path.Child("securityContext")
	errs = append(errs, validateIDs(sc.RunAsUser, sc.RunAsGroup, at)...)
	if sc.FSGroup != nil {
		errs = append(errs, invalid(at.Child("fsGroup"), *sc.FSGroup, validation.IsValidGroupID(*sc.FSGroup))...)
	}
	for i, g := range sc.SupplementalGroups {
		errs = append(errs, invalid(at.Child("supplementalGroups").Index(i), g, validation.IsValidGroupID(g))...)
	}
	if p := sc.FSGroupChangePolicy; p != nil {
		errs = append(errs, validateEnum(*p, at.Child("fsGroupChangePolicy"), v1.FSGroupChangeOnRootMismatch, v1.FSGroupChangeAlways)...)
	}
	if p := sc.SupplementalGroupsPolicy; p != nil {
		errs = append(errs, validateEnum(*p, at.Child("supplementalGroupsPolicy"),
			v1.SupplementalGroupsPolicyMerge, v1.SupplementalGroupsPolicyStrict)...)
	}
	if p := sc.SELinuxChangePolicy; p != nil {
		errs = append(errs, validateEnum(*p, at.Child("seLinuxChangePolicy"),
			v1.SELinuxChangePolicyRecursive, v1.SELinuxChangePolicyMountOption)...)
	}
	errs = append(errs, validateSeccomp(sc.SeccompProfile, at.Child("seccompProfile"))...)
	errs = append(errs, validateAppArmor(sc.AppArmorProfile, at.Child("appArmorProfile"))...)
	errs = append(errs, validateSysctls(sc.Sysctls, spec, at.Child("sysctls"))...)
	if isLinux(spec) && sc.WindowsOptions != nil {
		errs = append(errs, field.Forbidden(at.Child("windowsOptions"), "windows options cannot be set for a linux pod"))
	}
	return errs
}

func isLinux(spec *v1.PodSpec) bool { return spec.OS != nil && spec.OS.Name == v1.Linux }

func validateOS(spec *v1.PodSpec, path *field.Path) field.ErrorList {
	if spec.OS == nil {
		return nil
	}
	return validateEnum(spec.OS.Name, path.Child("os", "name"), v1.Linux, v1.Windows)
}

// validateSecurityContext checks what one container asks for.
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
		if sc.Capabilities != nil && slices.ContainsFunc(sc.Capabilities.Add, isSysAdmin) {
			errs = append(errs, field.Invalid(at, false, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"))
		}
	}
	if p := sc.ProcMount; p != nil {
		at := path.Child("procMount")
		errs = append(errs, validateEnum(*p, at, v1.DefaultProcMount, v1.UnmaskedProcMount)...)
		if *p == v1.UnmaskedProcMount && ptr.Deref(spec.HostUsers, true) {
			errs = append(errs, field.Invalid(at, *p, "`hostUsers` must be false to use `Unmasked`"))
		}
	}
	errs = append(errs, validateSeccomp(sc.SeccompProfile, path.Child("seccompProfile"))...)
	errs = append(errs, validateAppArmor(sc.AppArmorProfile, path.Child("appArmorProfile"))...)
	if isLinux(spec) && sc.WindowsOptions != nil {
		errs = append(errs, field.Forbidden(path.Child("windowsOptions"), "windows options cannot be set for a linux pod"))
	}
	return errs
}

func isSysAdmin(c v1.Capability) bool { return strings.TrimPrefix(string(c), "CAP_") == "SYS_ADMIN" }

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

func validateSeccomp(p *v1.SeccompProfile, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := validateEnum(p.Type, path.Child("type"),
		v1.SeccompProfileTypeLocalhost, v1.SeccompProfileTypeRuntimeDefault, v1.SeccompProfileTypeUnconfined)
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
	errs := validateEnum(p.Type, path.Child("type"),
		v1.AppArmorProfileTypeLocalhost, v1.AppArmorProfileTypeRuntimeDefault, v1.AppArmorProfileTypeUnconfined)
	at := path.Child("localhostProfile")
	switch profile := ptr.Deref(p.LocalhostProfile, ""); {
	case p.Type != v1.AppArmorProfileTypeLocalhost && p.LocalhostProfile != nil:
		errs = append(errs, field.Invalid(at, profile, "can only be set when AppArmor type is Localhost"))
	case p.Type == v1.AppArmorProfileTypeLocalhost && strings.TrimSpace(profile) == "":
		errs = append(errs, field.Required(at, "must be set when AppArmor type is Localhost"))
	case p.Type == v1.AppArmorProfileTypeLocalhost && profile != strings.TrimSpace(profile):
		errs = append(errs, field.Invalid(at, profile, "must not be padded with whitespace"))
	}
	return errs
}

// validateSysctls checks names, and that the pod does not set what it shares with the host.
func validateSysctls(sysctls []v1.Sysctl, spec *v1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]struct{}{}
	for i, s := range sysctls {
		at := path.Index(i).Child("name")
		name := strings.ReplaceAll(s.Name, "/", ".")
		switch _, taken := seen[name]; {
		case s.Name == "":
			errs = append(errs, field.Required(at, ""))
		case len(s.Name) > maxSysctlLength || !sysctlName.MatchString(s.Name):
			errs = append(errs, field.Invalid(at, s.Name, "must be at most 253 characters of the form kernel.shm_rmid_forced"))
		case taken:
			errs = append(errs, field.Duplicate(at, s.Name))
		}
		seen[name] = struct{}{}
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
