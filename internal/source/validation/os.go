package validation

import (
	"regexp"
	"strings"
	"unicode"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// validateOS checks that the pod uses only fields of its operating system (listed at PodSpec.os).
func validateOS(spec *v1.PodSpec, path *field.Path) field.ErrorList {
	if spec.OS == nil {
		return nil
	}
	switch spec.OS.Name {
	case v1.Linux:
		return validateLinux(spec, path)
	case v1.Windows:
		return validateWindows(spec, path)
	}
	return validateEnum(spec.OS.Name, path.Child("os", "name"), v1.Linux, v1.Windows)
}

// eachSecurityContext calls do for every container.
func eachSecurityContext(spec *v1.PodSpec, path *field.Path, do func(sc *v1.SecurityContext, at *field.Path)) {
	for _, list := range []struct {
		field      string
		containers []v1.Container
	}{{"containers", spec.Containers}, {"initContainers", spec.InitContainers}} {
		for i := range list.containers {
			do(list.containers[i].SecurityContext, path.Child(list.field).Index(i).Child("securityContext"))
		}
	}
}

func validateLinux(spec *v1.PodSpec, path *field.Path) field.ErrorList {
	const msg = "windows options cannot be set for a linux pod"
	var errs field.ErrorList
	if spec.SecurityContext != nil && spec.SecurityContext.WindowsOptions != nil {
		errs = append(errs, field.Forbidden(path.Child("securityContext", "windowsOptions"), msg))
	}
	eachSecurityContext(spec, path, func(sc *v1.SecurityContext, at *field.Path) {
		if sc != nil && sc.WindowsOptions != nil {
			errs = append(errs, field.Forbidden(at.Child("windowsOptions"), msg))
		}
	})
	return errs
}

func validateWindows(spec *v1.PodSpec, path *field.Path) field.ErrorList {
	errs := forbidOnWindows(path, alternative{"hostPID", spec.HostPID}, alternative{"hostIPC", spec.HostIPC},
		alternative{"hostUsers", spec.HostUsers != nil}, alternative{"shareProcessNamespace", spec.ShareProcessNamespace != nil})
	if sc := spec.SecurityContext; sc != nil {
		errs = append(errs, forbidOnWindows(path.Child("securityContext"),
			alternative{"appArmorProfile", sc.AppArmorProfile != nil}, alternative{"seLinuxOptions", sc.SELinuxOptions != nil},
			alternative{"seccompProfile", sc.SeccompProfile != nil}, alternative{"fsGroup", sc.FSGroup != nil},
			alternative{"fsGroupChangePolicy", sc.FSGroupChangePolicy != nil}, alternative{"sysctls", len(sc.Sysctls) > 0},
			alternative{"runAsUser", sc.RunAsUser != nil}, alternative{"runAsGroup", sc.RunAsGroup != nil},
			alternative{"supplementalGroups", sc.SupplementalGroups != nil}, alternative{"supplementalGroupsPolicy", sc.SupplementalGroupsPolicy != nil},
			alternative{"seLinuxChangePolicy", sc.SELinuxChangePolicy != nil})...)
	}
	eachSecurityContext(spec, path, func(sc *v1.SecurityContext, at *field.Path) {
		if sc != nil {
			errs = append(errs, forbidOnWindows(at, alternative{"appArmorProfile", sc.AppArmorProfile != nil},
				alternative{"seLinuxOptions", sc.SELinuxOptions != nil}, alternative{"seccompProfile", sc.SeccompProfile != nil},
				alternative{"capabilities", sc.Capabilities != nil}, alternative{"readOnlyRootFilesystem", sc.ReadOnlyRootFilesystem != nil},
				alternative{"privileged", sc.Privileged != nil}, alternative{"allowPrivilegeEscalation", sc.AllowPrivilegeEscalation != nil},
				alternative{"procMount", sc.ProcMount != nil}, alternative{"runAsUser", sc.RunAsUser != nil},
				alternative{"runAsGroup", sc.RunAsGroup != nil})...)
		}
	})
	return errs
}

func forbidOnWindows(path *field.Path, fields ...alternative) field.ErrorList {
	var errs field.ErrorList
	for _, f := range fields {
		if f.set {
			errs = append(errs, field.Forbidden(path.Child(f.field), "cannot be set for a windows pod"))
		}
	}
	return errs
}

// validateHostProcess checks that either all containers of a pod are host processes, on the host
// network, or none (kubernetes.io/docs/tasks/configure-pod-container/create-hostprocess-pod).
func validateHostProcess(spec *v1.PodSpec, path *field.Path) field.ErrorList {
	var whole *bool
	if sc := spec.SecurityContext; sc != nil && sc.WindowsOptions != nil {
		whole = sc.WindowsOptions.HostProcess
	}
	var errs field.ErrorList
	some, all := false, true
	eachSecurityContext(spec, path, func(sc *v1.SecurityContext, at *field.Path) {
		on := ptr.Deref(whole, false)
		if sc != nil && sc.WindowsOptions != nil && sc.WindowsOptions.HostProcess != nil {
			own := *sc.WindowsOptions.HostProcess
			if whole != nil && own != on {
				errs = append(errs, field.Invalid(at.Child("windowsOptions", "hostProcess"), own, "must be the same as the pod's"))
			}
			on = own
		}
		some, all = some || on, all && on
	})
	if some && !all {
		errs = append(errs, field.Invalid(path, "", "if pod contains any hostProcess containers then all containers must be HostProcess containers"))
	}
	if some && !spec.HostNetwork {
		errs = append(errs, field.Invalid(path.Child("hostNetwork"), false, "hostNetwork must be true if pod contains any hostProcess containers"))
	}
	return errs
}

// maxCredentialSpec limits WindowsSecurityContextOptions.gmsaCredentialSpec, in bytes.
const maxCredentialSpec = 64 << 10

func validateWindowsOptions(o *v1.WindowsSecurityContextOptions, path *field.Path) field.ErrorList {
	if o == nil {
		return nil
	}
	var errs field.ErrorList
	if n := o.GMSACredentialSpecName; n != nil {
		errs = append(errs, invalid(path.Child("gmsaCredentialSpecName"), *n, validation.IsDNS1123Subdomain(*n))...)
	}
	if s := o.GMSACredentialSpec; s != nil {
		at := path.Child("gmsaCredentialSpec")
		if *s == "" {
			errs = append(errs, field.Invalid(at, *s, "gmsaCredentialSpec cannot be an empty string"))
		} else if len(*s) > maxCredentialSpec {
			errs = append(errs, field.Invalid(at, "", "gmsaCredentialSpec size must be under 64 KiB"))
		}
	}
	if u := o.RunAsUserName; u != nil {
		errs = append(errs, invalid(path.Child("runAsUserName"), *u, explainUserName(*u))...)
	}
	return errs
}

// The form of a Windows user, DOMAIN\USER
// (kubernetes.io/docs/tasks/configure-pod-container/configure-runasusername, "Windows Username
// limitations").
const (
	maxUserLength   = 104
	maxDomainLength = 255
	userCharacters  = `"/\:;|=,+*?<>@[]` // not allowed in a user name
)

var (
	netBIOSName = regexp.MustCompile(`^[^\\/:*?"<>|.][^\\/:*?"<>|]{0,14}$`)
	dnsName     = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?$`)
)

// explainUserName returns what is wrong with the name of a Windows user.
func explainUserName(name string) []string {
	if name == "" {
		return []string{"runAsUserName cannot be an empty string"}
	}
	if strings.ContainsFunc(name, unicode.IsControl) {
		return []string{"runAsUserName cannot contain control characters"}
	}
	domain, user, ok := strings.Cut(name, `\`)
	if !ok {
		domain, user = "", name
	}
	if strings.Contains(user, `\`) {
		return []string{"runAsUserName cannot contain more than one backslash"}
	}
	var problems []string
	if ok && !netBIOSName.MatchString(domain) && (!dnsName.MatchString(domain) || len(domain) > maxDomainLength) {
		problems = append(problems, "runAsUserName's Domain doesn't match the NetBios nor the DNS format")
	}
	switch {
	case user == "":
		problems = append(problems, "runAsUserName's User cannot be empty")
	case len(user) > maxUserLength:
		problems = append(problems, "runAsUserName's User length must not be longer than 104 characters")
	case strings.Trim(user, " .") == "":
		problems = append(problems, "runAsUserName's User cannot contain only periods or spaces")
	case strings.ContainsAny(user, userCharacters):
		problems = append(problems, "runAsUserName's User cannot contain the following characters: "+userCharacters)
	}
	return problems
}
