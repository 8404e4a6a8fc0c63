package crispec

import (
	"errors"
	"iter"
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/runtime/userns"
)

// Paths that are masked or read-only in containers, unless procMount is Unmasked.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// sandboxSecurity returns the security context of the process that holds the pod's namespaces.
func sandboxSecurity(s Sandbox) (*runtimeapi.LinuxSandboxSecurityContext, error) {
	p := s.Pod
	ns, err := namespaces(p, s.Users)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: ns,
		Privileged:       anyPrivileged(p),
		Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	if sc := p.Spec.SecurityContext; sc != nil {
		if out.RunAsUser = int64Value(sc.RunAsUser); out.RunAsUser != nil {
			out.RunAsGroup = int64Value(sc.RunAsGroup) // the runtime accepts no group without a user
		}
		out.SupplementalGroupsPolicy = groupsPolicy(sc)
		out.SelinuxOptions = selinux(sc.SELinuxOptions)
	}
	out.SupplementalGroups = supplementalGroups(p, s.VolumeGroups)
	return out, nil
}

// containerSecurity returns the container's effective security context: the container's fields take
// precedence over the pod's.
func containerSecurity(in Container) (*runtimeapi.LinuxContainerSecurityContext, error) {
	p, c := in.Pod, in.Container
	psc, sc := p.Spec.SecurityContext, c.SecurityContext
	if psc == nil {
		psc = &v1.PodSecurityContext{}
	}
	if sc == nil {
		sc = &v1.SecurityContext{}
	}
	out := &runtimeapi.LinuxContainerSecurityContext{
		SupplementalGroups:       supplementalGroups(p, in.VolumeGroups),
		SupplementalGroupsPolicy: groupsPolicy(psc),
		Privileged:               isTrue(sc.Privileged),
		ReadonlyRootfs:           isTrue(sc.ReadOnlyRootFilesystem),
		NoNewPrivs:               sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation,
		Capabilities:             capabilities(sc.Capabilities),
		SelinuxOptions:           selinux(psc.SELinuxOptions),
	}
	if sc.SELinuxOptions != nil {
		out.SelinuxOptions = selinux(sc.SELinuxOptions)
	}
	if sc.ProcMount == nil || *sc.ProcMount != v1.UnmaskedProcMount {
		out.MaskedPaths, out.ReadonlyPaths = slices.Concat(maskedPaths, in.Node.MaskedPaths), readonlyPaths
	}
	var err error
	if out.NamespaceOptions, err = namespaces(p, in.Users); err != nil {
		return nil, err
	}
	if in.Target != "" {
		out.NamespaceOptions.Pid, out.NamespaceOptions.TargetId = runtimeapi.NamespaceMode_TARGET, string(in.Target)
	}
	if err := setUser(in, out); err != nil {
		return nil, err
	}
	if out.Seccomp, err = seccomp(in); err != nil {
		return nil, err
	}
	//lint:ignore SA1019 older runtimes read only the field of old
	if out.Apparmor, out.ApparmorProfile, err = appArmor(p, c); err != nil {
		return nil, err
	}
	return out, nil
}

// namespaces returns the namespaces that the pod shares with the host, and its containers with each
// other.
func namespaces(p *v1.Pod, users *userns.Range) (*runtimeapi.NamespaceOption, error) {
	mode := func(host bool, own runtimeapi.NamespaceMode) runtimeapi.NamespaceMode {
		if host {
			return runtimeapi.NamespaceMode_NODE
		}
		return own
	}
	pid := runtimeapi.NamespaceMode_CONTAINER
	if isTrue(p.Spec.ShareProcessNamespace) {
		pid = runtimeapi.NamespaceMode_POD
	}
	out := &runtimeapi.NamespaceOption{
		Network:       mode(p.Spec.HostNetwork, runtimeapi.NamespaceMode_POD),
		Ipc:           mode(p.Spec.HostIPC, runtimeapi.NamespaceMode_POD),
		Pid:           mode(p.Spec.HostPID, pid),
		UsernsOptions: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE},
	}
	if HasUserNamespace(p) {
		if users == nil {
			return nil, errors.New("the pod wants a user namespace (hostUsers: false), and there are no ids of the host for it")
		}
		ids := idMappings(users)
		out.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
	}
	return out, nil
}

// HasUserNamespace reports whether the pod has its own user namespace (KEP-127).
func HasUserNamespace(p *v1.Pod) bool { return p.Spec.HostUsers != nil && !*p.Spec.HostUsers }

// idMappings returns the ID mappings of a user namespace, nil for the host's.
func idMappings(users *userns.Range) []*runtimeapi.IDMapping {
	if users == nil {
		return nil
	}
	return []*runtimeapi.IDMapping{{HostId: users.First, ContainerId: 0, Length: users.Length}}
}

func capabilities(c *v1.Capabilities) *runtimeapi.Capability {
	if c == nil {
		return nil
	}
	out := &runtimeapi.Capability{}
	for _, a := range c.Add {
		out.AddCapabilities = append(out.AddCapabilities, string(a))
	}
	for _, d := range c.Drop {
		out.DropCapabilities = append(out.DropCapabilities, string(d))
	}
	return out
}

func selinux(o *v1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func anyPrivileged(p *v1.Pod) bool {
	for c := range pod.Containers(&p.Spec) {
		if sc := c.SecurityContext; sc != nil && isTrue(sc.Privileged) {
			return true
		}
	}
	return slices.ContainsFunc(p.Spec.EphemeralContainers, func(e v1.EphemeralContainer) bool {
		return e.SecurityContext != nil && isTrue(e.SecurityContext.Privileged)
	})
}

// servingContainers are those that run as long as the pod: sidecars and regular containers.
func servingContainers(p *v1.Pod) iter.Seq[*v1.Container] {
	return func(yield func(*v1.Container) bool) {
		for i := range p.Spec.InitContainers {
			if c := &p.Spec.InitContainers[i]; lifecycle.IsSidecar(c) && !yield(c) {
				return
			}
		}
		for i := range p.Spec.Containers {
			if !yield(&p.Spec.Containers[i]) {
				return
			}
		}
	}
}

func isTrue(b *bool) bool { return b != nil && *b }
