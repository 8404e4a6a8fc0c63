package crispec

import (
	"errors"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Paths that containers do not see, or see read-only, unless procMount is Unmasked.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// The errors of a container that must not run as root and would.
var (
	ErrRunAsRoot      = errors.New("container's runAsUser breaks non-root policy")
	ErrImageRunAsRoot = errors.New("container has runAsNonRoot and image will run as root")
)

// ImageUser is who an image says its process runs as.
type ImageUser struct {
	UID  *int64 // numeric user, if it has one
	Name string // otherwise the user's name, if it has one
}

// CheckRunAsNonRoot enforces runAsNonRoot against the pod, the container and the image's user.
func CheckRunAsNonRoot(p *v1.Pod, c *v1.Container, image ImageUser) error {
	if !RunAsNonRoot(p, c) {
		return nil
	}
	if uid := runAsUser(p, c); uid != nil {
		if *uid == 0 {
			return ErrRunAsRoot
		}
		return nil
	}
	switch {
	case image.UID != nil && *image.UID == 0, image.UID == nil && image.Name == "":
		return ErrImageRunAsRoot
	case image.UID == nil:
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root", image.Name)
	}
	return nil
}

// RunAsNonRoot returns the effective runAsNonRoot of the container.
func RunAsNonRoot(p *v1.Pod, c *v1.Container) bool {
	if c.SecurityContext != nil && c.SecurityContext.RunAsNonRoot != nil {
		return *c.SecurityContext.RunAsNonRoot
	}
	return p.Spec.SecurityContext != nil && p.Spec.SecurityContext.RunAsNonRoot != nil && *p.Spec.SecurityContext.RunAsNonRoot
}

func runAsUser(p *v1.Pod, c *v1.Container) *int64 {
	if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
		return c.SecurityContext.RunAsUser
	}
	if p.Spec.SecurityContext != nil {
		return p.Spec.SecurityContext.RunAsUser
	}
	return nil
}

func runAsGroup(p *v1.Pod, c *v1.Container) *int64 {
	if c.SecurityContext != nil && c.SecurityContext.RunAsGroup != nil {
		return c.SecurityContext.RunAsGroup
	}
	if p.Spec.SecurityContext != nil {
		return p.Spec.SecurityContext.RunAsGroup
	}
	return nil
}

// containerSecurity returns the container's effective security context: the container's fields over the pod's.
func containerSecurity(in Container) *runtimeapi.LinuxContainerSecurityContext {
	p, c := in.Pod, in.Container
	psc, sc := p.Spec.SecurityContext, c.SecurityContext
	if psc == nil {
		psc = &v1.PodSecurityContext{}
	}
	if sc == nil {
		sc = &v1.SecurityContext{}
	}
	out := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions:         namespaces(p),
		RunAsUser:                int64Value(runAsUser(p, c)),
		RunAsGroup:               int64Value(runAsGroup(p, c)),
		SupplementalGroups:       supplementalGroups(p),
		SupplementalGroupsPolicy: groupsPolicy(psc),
		Privileged:               isTrue(sc.Privileged),
		ReadonlyRootfs:           isTrue(sc.ReadOnlyRootFilesystem),
		NoNewPrivs:               sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation,
		Seccomp:                  seccomp(firstProfile(sc.SeccompProfile, psc.SeccompProfile), in.SeccompRoot),
	}
	if in.Target != "" {
		out.NamespaceOptions.Pid, out.NamespaceOptions.TargetId = runtimeapi.NamespaceMode_TARGET, string(in.Target)
	}
	if sc.Capabilities != nil {
		out.Capabilities = &runtimeapi.Capability{}
		for _, a := range sc.Capabilities.Add {
			out.Capabilities.AddCapabilities = append(out.Capabilities.AddCapabilities, string(a))
		}
		for _, d := range sc.Capabilities.Drop {
			out.Capabilities.DropCapabilities = append(out.Capabilities.DropCapabilities, string(d))
		}
	}
	if sc.SELinuxOptions != nil {
		out.SelinuxOptions = selinux(sc.SELinuxOptions)
	} else {
		out.SelinuxOptions = selinux(psc.SELinuxOptions)
	}
	if sc.ProcMount == nil || *sc.ProcMount != v1.UnmaskedProcMount {
		out.MaskedPaths, out.ReadonlyPaths = maskedPaths, readonlyPaths
	}
	return out
}

func firstProfile(container, pod *v1.SeccompProfile) *v1.SeccompProfile {
	if container != nil {
		return container
	}
	return pod
}

func seccomp(s *v1.SeccompProfile, root string) *runtimeapi.SecurityProfile {
	if s == nil {
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	}
	switch s.Type {
	case v1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	case v1.SeccompProfileTypeLocalhost:
		if s.LocalhostProfile != nil {
			return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: filepath.Join(root, *s.LocalhostProfile)}
		}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
}

func supplementalGroups(p *v1.Pod) []int64 {
	sc := p.Spec.SecurityContext
	if sc == nil {
		return nil
	}
	var out []int64
	if sc.FSGroup != nil {
		out = append(out, *sc.FSGroup)
	}
	return append(out, sc.SupplementalGroups...)
}

func groupsPolicy(sc *v1.PodSecurityContext) runtimeapi.SupplementalGroupsPolicy {
	if sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict {
		return runtimeapi.SupplementalGroupsPolicy_Strict
	}
	return runtimeapi.SupplementalGroupsPolicy_Merge
}

func selinux(o *v1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func anyPrivileged(p *v1.Pod) bool {
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if sc := list[i].SecurityContext; sc != nil && isTrue(sc.Privileged) {
				return true
			}
		}
	}
	return false
}

func isTrue(b *bool) bool { return b != nil && *b }

func int64Value(v *int64) *runtimeapi.Int64Value {
	if v == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *v}
}
