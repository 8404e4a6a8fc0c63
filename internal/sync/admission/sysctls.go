package admission

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/node/util/sysctl"
)

// safeSysctls may be set by every pod: they affect only the pod and cannot harm the node. The value
// is the first kernel that namespaces the sysctl, "" for all (Kubernetes documentation, "Using
// sysctls in a Kubernetes Cluster").
var safeSysctls = map[string]string{
	"kernel.shm_rmid_forced":              "",
	"net.ipv4.ip_local_port_range":        "",
	"net.ipv4.tcp_syncookies":             "",
	"net.ipv4.ping_group_range":           "",
	"net.ipv4.ip_unprivileged_port_start": "",
	"net.ipv4.ip_local_reserved_ports":    "3.16",
	"net.ipv4.tcp_keepalive_time":         "4.5",
	"net.ipv4.tcp_keepalive_intvl":        "4.5",
	"net.ipv4.tcp_keepalive_probes":       "4.5",
	"net.ipv4.tcp_fin_timeout":            "4.6",
	"net.ipv4.tcp_rmem":                   "4.15",
	"net.ipv4.tcp_wmem":                   "4.15",
}

// sysctls rejects pods with sysctls that are neither safe nor allowed by the node's administrator,
// or that would change the host.
func sysctls(a Attributes) *Rejection {
	sc := a.Pod.Spec.SecurityContext
	if sc == nil {
		return nil
	}
	for _, s := range sc.Sysctls {
		if why := forbidden(a, s.Name); why != "" {
			message := fmt.Sprintf("forbidden sysctl: %q %s", s.Name, why)
			return &Rejection{Reason: "SysctlForbidden", Message: message, Detail: message + ": " + explainForbidden(a, s.Name)}
		}
	}
	return nil
}

// forbidden returns why the pod may not set the sysctl, "" if it may. Names are separated by dots
// or slashes (sysctl.d(5)).
func forbidden(a Attributes, name string) string {
	name = sysctl.NormalizeName(name)
	if !isSafe(name, a.Facts.Kernel) && !isAllowed(name, a.Facts.AllowedUnsafeSysctls) {
		return "not allowlisted"
	}
	switch namespace, _, _ := sysctl.GetNamespace(name); {
	case namespace == sysctl.IPCNamespace && a.Pod.Spec.HostIPC:
		return "not allowed with host ipc enabled"
	case namespace == sysctl.NetNamespace && a.Pod.Spec.HostNetwork:
		return "not allowed with host net enabled"
	}
	return ""
}

// explainForbidden returns the rule that forbids the sysctl, and how to allow it.
func explainForbidden(a Attributes, name string) string {
	name = sysctl.NormalizeName(name)
	namespace, _, _ := sysctl.GetNamespace(name)
	switch {
	case namespace == sysctl.UnknownNamespace:
		return "it belongs to no namespace that a pod has, so that only the administrator can set it, by sysctl on the node; remove it from securityContext.sysctls"
	case isSafe(name, a.Facts.Kernel) || isAllowed(name, a.Facts.AllowedUnsafeSysctls):
		field := "hostIPC"
		if namespace == sysctl.NetNamespace {
			field = "hostNetwork"
		}
		return fmt.Sprintf("the pod has %s: true, and would change the node; remove one of both", field)
	}
	why := "it is none of the safe sysctls"
	if since := safeSysctls[name]; since != "" {
		why = fmt.Sprintf("it is safe since Linux %s, and the node has %s", since, cmp.Or(a.Facts.Kernel, "an unknown version"))
	}
	allowed := "none"
	if len(a.Facts.AllowedUnsafeSysctls) > 0 {
		allowed = strings.Join(a.Facts.AllowedUnsafeSysctls, ", ")
	}
	return fmt.Sprintf("%s, and allowedUnsafeSysctls has %s; berth kubelet allows it by --allowed-unsafe-sysctls=%s, or by allowedUnsafeSysctls of its KubeletConfiguration; berth run allows safe ones alone",
		why, allowed, name)
}

func isSafe(name, kernel string) bool {
	since, ok := safeSysctls[name]
	if !ok || since == "" {
		return ok
	}
	running, err := version.ParseGeneric(kernel)
	return err == nil && running.AtLeast(version.MustParseGeneric(since))
}

// isAllowed reports whether a pattern matches the sysctl. Validation of the configuration rejects
// patterns for sysctls without a namespace.
func isAllowed(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		beginning, isBeginning := strings.CutSuffix(sysctl.NormalizeName(pattern), "*")
		return isBeginning && strings.HasPrefix(name, beginning) || name == beginning
	})
}
