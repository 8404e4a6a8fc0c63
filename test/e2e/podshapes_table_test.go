//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// shape is one form of a pod. Both runtime handlers run it, and the results are compared.
type shape struct {
	name   string
	change []func(*v1.Pod, *v1.Container) // applied to a plain pod and its first container
	// done reports whether the pod has reached the state that is compared; nil means stopped.
	done func(*v1.Pod) bool
	exec bool // the probe program is run by exec in the container main
	// debug: the probe program is run by an ephemeral container that shares the PID namespace of
	// the container main.
	debug bool
	mute  bool // the output is not compared
}

// The programs of the image.
var (
	probeCommand = []string{"/before", "/payload", "probe"}
	sleepCommand = []string{"/payload", "sleep"}
)

func payload(args ...string) []string { return append([]string{"/payload"}, args...) }

// newShapePod returns the plain pod: its container runs the probe program once.
func newShapePod(name, namespace, handler string) *v1.Pod {
	return &v1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"app": name}, Annotations: map[string]string{"note": "a note"}},
		Spec: v1.PodSpec{
			RuntimeClassName: &handler, RestartPolicy: v1.RestartPolicyNever, TerminationGracePeriodSeconds: ptr.To[int64](1),
			Containers: []v1.Container{{Name: "main", Image: shapeImage, ImagePullPolicy: v1.PullNever, Command: probeCommand}},
		},
	}
}

func (s shape) pod(namespace, handler string) *v1.Pod {
	p := newShapePod(s.name, namespace, handler)
	for _, change := range s.change {
		change(p, &p.Spec.Containers[0])
	}
	return p
}

// Changes of a pod or of its first container.

func onPod(f func(*v1.PodSpec)) func(*v1.Pod, *v1.Container) {
	return func(p *v1.Pod, _ *v1.Container) { f(&p.Spec) }
}

func onContainer(f func(*v1.Container)) func(*v1.Pod, *v1.Container) {
	return func(_ *v1.Pod, c *v1.Container) { f(c) }
}

func command(args ...string) func(*v1.Pod, *v1.Container) {
	return onContainer(func(c *v1.Container) { c.Command = args })
}

func fromImage(name string, args ...string) func(*v1.Pod, *v1.Container) {
	return onContainer(func(c *v1.Container) { c.Image, c.Command, c.Args = shapeImages+name, nil, args })
}

func podContext(f func(*v1.PodSecurityContext)) func(*v1.Pod, *v1.Container) {
	return onPod(func(s *v1.PodSpec) {
		if s.SecurityContext == nil {
			s.SecurityContext = &v1.PodSecurityContext{}
		}
		f(s.SecurityContext)
	})
}

func containerContext(f func(*v1.SecurityContext)) func(*v1.Pod, *v1.Container) {
	return onContainer(func(c *v1.Container) {
		if c.SecurityContext == nil {
			c.SecurityContext = &v1.SecurityContext{}
		}
		f(c.SecurityContext)
	})
}

func podSysctl(name, value string) func(*v1.Pod, *v1.Container) {
	return podContext(func(s *v1.PodSecurityContext) { s.Sysctls = append(s.Sysctls, v1.Sysctl{Name: name, Value: value}) })
}

func caps(add, drop string) func(*v1.Pod, *v1.Container) {
	list := func(text string) []v1.Capability {
		var out []v1.Capability
		for name := range strings.FieldsSeq(text) {
			out = append(out, v1.Capability(name))
		}
		return out
	}
	return containerContext(func(s *v1.SecurityContext) { s.Capabilities = &v1.Capabilities{Add: list(add), Drop: list(drop)} })
}

func runtimeSeccomp(kind v1.SeccompProfileType, file string) func(*v1.Pod, *v1.Container) {
	return containerContext(func(s *v1.SecurityContext) {
		s.SeccompProfile = &v1.SeccompProfile{Type: kind}
		if file != "" {
			s.SeccompProfile.LocalhostProfile = &file
		}
	})
}

// resourceList reads "cpu=1 memory=1Mi".
func resourceList(text string) v1.ResourceList {
	list := v1.ResourceList{}
	for field := range strings.FieldsSeq(text) {
		name, quantity, _ := strings.Cut(field, "=")
		list[v1.ResourceName(name)] = resource.MustParse(quantity)
	}
	return list
}

func requirements(requests, limits string) v1.ResourceRequirements {
	r := v1.ResourceRequirements{}
	if requests != "" {
		r.Requests = resourceList(requests)
	}
	if limits != "" {
		r.Limits = resourceList(limits)
	}
	return r
}

func resources(requests, limits string) func(*v1.Pod, *v1.Container) {
	return onContainer(func(c *v1.Container) { c.Resources = requirements(requests, limits) })
}

func podResources(requests, limits string) func(*v1.Pod, *v1.Container) {
	return onPod(func(s *v1.PodSpec) { s.Resources = ptr.To(requirements(requests, limits)) })
}

// mounted adds a volume and mounts it; options change the mount.
func mounted(at string, source v1.VolumeSource, options ...func(*v1.VolumeMount)) func(*v1.Pod, *v1.Container) {
	return func(p *v1.Pod, c *v1.Container) {
		name := fmt.Sprintf("v%d", len(p.Spec.Volumes))
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
		m := v1.VolumeMount{Name: name, MountPath: at}
		for _, o := range options {
			o(&m)
		}
		c.VolumeMounts = append(c.VolumeMounts, m)
	}
}

func readOnlyMount(m *v1.VolumeMount) { m.ReadOnly = true }

func recursively(how v1.RecursiveReadOnlyMode) func(*v1.VolumeMount) {
	return func(m *v1.VolumeMount) { m.ReadOnly, m.RecursiveReadOnly = true, &how }
}

func propagation(how v1.MountPropagationMode) func(*v1.VolumeMount) {
	return func(m *v1.VolumeMount) { m.MountPropagation = &how }
}

func subPath(path string) func(*v1.VolumeMount) {
	return func(m *v1.VolumeMount) { m.SubPath = path }
}

func hostPath(path string, kind v1.HostPathType) v1.VolumeSource {
	return v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path, Type: &kind}}
}

func emptyDir(medium v1.StorageMedium, limit string) v1.VolumeSource {
	e := &v1.EmptyDirVolumeSource{Medium: medium}
	if limit != "" {
		e.SizeLimit = ptr.To(resource.MustParse(limit))
	}
	return v1.VolumeSource{EmptyDir: e}
}

var (
	configMapVolume = v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "conf"}}}
	secretVolume    = v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "keys"}}
	downwardFiles   = []v1.DownwardAPIVolumeFile{
		{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
		{Path: "limit", ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.memory"}},
	}
	projectedVolume = v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
		{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "conf"}}},
		{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "keys"}, Items: []v1.KeyToPath{{Key: "password", Path: "deep/password", Mode: ptr.To[int32](0o400)}}}},
		{DownwardAPI: &v1.DownwardAPIProjection{Items: downwardFiles}},
	}}}
)

// another adds a container that runs the command.
func another(name string, args ...string) func(*v1.Pod, *v1.Container) {
	return func(p *v1.Pod, _ *v1.Container) {
		p.Spec.Containers = append(slices.Clip(p.Spec.Containers), v1.Container{Name: name, Image: shapeImage, ImagePullPolicy: v1.PullNever, Command: args})
	}
}

// initially adds an init container that runs the command.
func initially(name string, args ...string) func(*v1.Pod, *v1.Container) {
	return onPod(func(s *v1.PodSpec) {
		s.InitContainers = append(s.InitContainers, v1.Container{Name: name, Image: shapeImage, ImagePullPolicy: v1.PullNever, Command: args})
	})
}

// asSidecars makes all init containers sidecars.
var asSidecars = onPod(func(s *v1.PodSpec) {
	for i := range s.InitContainers {
		s.InitContainers[i] = sidecar(s.InitContainers[i])
	}
})

func env(vars ...v1.EnvVar) func(*v1.Pod, *v1.Container) {
	return onContainer(func(c *v1.Container) { c.Env = append(c.Env, vars...) })
}

func fieldEnv(name, path string) v1.EnvVar {
	return v1.EnvVar{Name: name, ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}}
}

func resourceEnv(name, field string) v1.EnvVar {
	return v1.EnvVar{Name: name, ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: field}}}
}

func withHooks(postStart, preStop *v1.LifecycleHandler) func(*v1.Pod, *v1.Container) {
	return onContainer(func(c *v1.Container) { c.Lifecycle = &v1.Lifecycle{PostStart: postStart, PreStop: preStop} })
}

func execHook(args ...string) *v1.LifecycleHandler {
	return &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: args}}
}

func execProbe(args ...string) *v1.Probe {
	return &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: args}}, PeriodSeconds: 1, FailureThreshold: 1}
}

func restart(policy v1.RestartPolicy) func(*v1.Pod, *v1.Container) {
	return onPod(func(s *v1.PodSpec) { s.RestartPolicy = policy })
}

// deadline ends the pod ten seconds after its start, when its program has begun also on a busy
// machine: a signal before that has another effect.
var deadline = onPod(func(s *v1.PodSpec) { s.ActiveDeadlineSeconds = ptr.To[int64](10) })

// States of a pod.

// stopped reports whether the pod has finished, or waits for something that does not happen.
func stopped(p *v1.Pod) bool {
	if p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed {
		return true
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && slices.Contains([]string{"CreateContainerError", "CreateContainerConfigError", "RunContainerError"}, w.Reason) {
			return true
		}
	}
	return false
}

func shapeReady(p *v1.Pod) bool { return pods{p}.ready(p.Name) }

// restarted reports whether the container main has been restarted.
func restarted(p *v1.Pod) bool {
	c := container(p, "main")
	return c.RestartCount >= 1 && c.LastTerminationState.Terminated != nil
}

func ofShape(name string, change ...func(*v1.Pod, *v1.Container)) shape {
	return shape{name: name, change: change}
}

func (s shape) until(done func(*v1.Pod) bool) shape { s.done = done; return s }

func (s shape) byExec() shape {
	s.exec, s.done = true, shapeReady
	s.change = append(s.change, command(sleepCommand...))
	return s
}

// byDebug makes the container main wait for `berth debug`.
func (s shape) byDebug() shape {
	s.debug, s.done = true, shapeReady
	// The name of the token's volume has a random suffix.
	withoutToken := onPod(func(s *v1.PodSpec) { s.AutomountServiceAccountToken = ptr.To(false) })
	s.change = append(s.change, command(sleepCommand...), withoutToken)
	return s
}

func (s shape) withoutOutput() shape { s.mute = true; return s }

// Changes that are combined with each other.
var (
	asUser = podContext(func(s *v1.PodSecurityContext) {
		s.RunAsUser, s.RunAsGroup, s.FSGroup, s.SupplementalGroups = ptr.To[int64](1000), ptr.To[int64](2000), ptr.To[int64](3000), []int64{4000}
	})
	readOnlyRoot  = containerContext(func(s *v1.SecurityContext) { s.ReadOnlyRootFilesystem = ptr.To(true) })
	noEscalation  = containerContext(func(s *v1.SecurityContext) { s.AllowPrivilegeEscalation = ptr.To(false) })
	privileged    = containerContext(func(s *v1.SecurityContext) { s.Privileged = ptr.To(true) })
	terminal      = onContainer(func(c *v1.Container) { c.TTY = true })
	seccompOfNode = runtimeSeccomp(v1.SeccompProfileTypeRuntimeDefault, "")
	ownUsers      = onPod(func(s *v1.PodSpec) { s.HostUsers = ptr.To(false) })
	sharedPID     = onPod(func(s *v1.PodSpec) { s.ShareProcessNamespace = ptr.To(true) })
	hostPID       = onPod(func(s *v1.PodSpec) { s.HostPID = true })
	hostIPC       = onPod(func(s *v1.PodSpec) { s.HostIPC = true })
	hostNetwork   = onPod(func(s *v1.PodSpec) { s.HostNetwork = true })
)

// shapes returns all shapes. Paths of hostPath volumes are below host.
func shapes(host string) []shape {
	all := slices.Concat(securityShapes(), namespaceShapes(), resourceShapes(), processShapes(), volumeShapes(host), lifecycleShapes())
	rights := map[string][]func(*v1.Pod, *v1.Container){
		"user": {asUser}, "read-only-root": {readOnlyRoot}, "no-escalation": {noEscalation}, "no-capabilities": {caps("", "ALL")}, "sys-admin": {caps("SYS_ADMIN", "")},
		"seccomp": {seccompOfNode}, "privileged": {privileged}, "tty": {terminal}, "limits": {resources("cpu=20m", "cpu=100m memory=64Mi")},
		"memory-volume": {mounted("/memory", emptyDir(v1.StorageMediumMemory, "1Mi")), asUser},
	}
	for _, n := range []struct {
		name   string
		change func(*v1.Pod, *v1.Container)
		rights string
	}{
		{"own-users", ownUsers, "user read-only-root no-escalation no-capabilities sys-admin seccomp tty limits memory-volume"},
		{"own-users-shared-pid", func(p *v1.Pod, c *v1.Container) { ownUsers(p, c); sharedPID(p, c) }, "user tty"},
		{"shared-pid", sharedPID, "user read-only-root no-capabilities sys-admin seccomp privileged tty"},
		{"host-pid", hostPID, "user sys-admin privileged tty"},
		{"host-ipc", hostIPC, "user privileged memory-volume"},
		{"host-network", hostNetwork, "user sys-admin privileged seccomp"},
	} {
		for right := range strings.FieldsSeq(n.rights) {
			all = append(all, ofShape(n.name+"-"+right, append(slices.Clone(rights[right]), n.change)...))
		}
	}
	return all
}

func securityShapes() []shape {
	return []shape{
		ofShape("plain"),
		ofShape("run-as-user", containerContext(func(s *v1.SecurityContext) { s.RunAsUser = ptr.To[int64](1000) })),
		ofShape("run-as-unknown-user", containerContext(func(s *v1.SecurityContext) { s.RunAsUser = ptr.To[int64](4711) })),
		ofShape("run-as-group", containerContext(func(s *v1.SecurityContext) { s.RunAsUser, s.RunAsGroup = ptr.To[int64](1000), ptr.To[int64](2000) })),
		ofShape("user-of-pod", asUser),
		ofShape("fs-group", podContext(func(s *v1.PodSecurityContext) { s.FSGroup = ptr.To[int64](3000) }), mounted("/volume", emptyDir("", ""))),
		ofShape("supplemental-groups", podContext(func(s *v1.PodSecurityContext) { s.SupplementalGroups = []int64{0, 5, 70000} })),
		ofShape("strict-groups", asUser, podContext(func(s *v1.PodSecurityContext) {
			s.SupplementalGroupsPolicy = ptr.To(v1.SupplementalGroupsPolicyStrict)
		})),
		ofShape("non-root", asUser, podContext(func(s *v1.PodSecurityContext) { s.RunAsNonRoot = ptr.To(true) })),
		ofShape("non-root-refused", podContext(func(s *v1.PodSecurityContext) { s.RunAsNonRoot = ptr.To(true) })),
		ofShape("read-only-root", readOnlyRoot),
		ofShape("no-escalation", noEscalation),
		ofShape("no-capabilities", caps("", "ALL")),
		ofShape("all-capabilities", caps("ALL", "")),
		ofShape("all-capabilities-but-one", caps("ALL", "NET_RAW")),
		ofShape("one-capability", caps("NET_BIND_SERVICE", "ALL")),
		ofShape("net-admin", caps("NET_ADMIN NET_RAW", "")),
		ofShape("sys-admin", caps("SYS_ADMIN", "")),
		ofShape("sys-ptrace", caps("SYS_PTRACE SYS_NICE", "MKNOD")),
		ofShape("sys-time", caps("SYS_TIME", "CHOWN SETUID SETGID")),
		ofShape("capability-of-user", asUser, caps("NET_ADMIN", "")),
		ofShape("privileged", privileged),
		ofShape("privileged-user", privileged, asUser),
		ofShape("privileged-read-only-root", privileged, readOnlyRoot),
		ofShape("proc-unmasked", ownUsers, containerContext(func(s *v1.SecurityContext) { s.ProcMount = ptr.To(v1.UnmaskedProcMount) })),
		ofShape("seccomp-default", seccompOfNode),
		ofShape("seccomp-of-pod", podContext(func(s *v1.PodSecurityContext) {
			s.SeccompProfile = &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault}
		})),
		ofShape("seccomp-unconfined", runtimeSeccomp(v1.SeccompProfileTypeUnconfined, "")),
		ofShape("seccomp-localhost", runtimeSeccomp(v1.SeccompProfileTypeLocalhost, "shapes/no-mkdir.json")),
		ofShape("seccomp-absent", runtimeSeccomp(v1.SeccompProfileTypeLocalhost, "shapes/absent.json")),
		ofShape("seccomp-privileged", seccompOfNode, privileged),
		ofShape("apparmor-unconfined", containerContext(func(s *v1.SecurityContext) {
			s.AppArmorProfile = &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}
		})),
		ofShape("restricted", asUser, readOnlyRoot, noEscalation, caps("", "ALL"), seccompOfNode, podContext(func(s *v1.PodSecurityContext) { s.RunAsNonRoot = ptr.To(true) })),
		ofShape("image-user", fromImage("user", probeCommand...)),
		ofShape("image-user-by-name", fromImage("user-by-name", probeCommand...)),
		ofShape("image-user-absent", fromImage("user-absent", probeCommand...)),
		ofShape("exec-plain").byExec(),
		ofShape("exec-user", asUser, readOnlyRoot, noEscalation).byExec(),
		ofShape("exec-capabilities", caps("NET_ADMIN", "ALL")).byExec(),
		ofShape("exec-privileged", privileged).byExec(),
		ofShape("exec-seccomp", seccompOfNode).byExec(),
		ofShape("exec-tty", terminal).byExec(),
		ofShape("exec-own-users", ownUsers, asUser).byExec(),
		ofShape("exec-own-users-tty", ownUsers, terminal).byExec(),
		ofShape("exec-shared-pid", sharedPID).byExec(),
		ofShape("exec-host-namespaces", hostPID, hostIPC, hostNetwork).byExec(),
		ofShape("debug-plain").byDebug(),
		ofShape("debug-own-users", ownUsers).byDebug(),
		ofShape("debug-own-users-user", ownUsers, asUser, readOnlyRoot).byDebug(),
		ofShape("debug-own-users-seccomp", ownUsers, seccompOfNode).byDebug(),
		ofShape("debug-own-users-shared-pid", ownUsers, sharedPID).byDebug(),
		ofShape("exec-limits", resources("cpu=20m", "cpu=100m memory=64Mi")).byExec(),
	}
}

func namespaceShapes() []shape {
	return []shape{
		ofShape("host-network", hostNetwork),
		ofShape("host-network-dns", hostNetwork, onPod(func(s *v1.PodSpec) { s.DNSPolicy = v1.DNSClusterFirstWithHostNet })),
		ofShape("host-pid", hostPID),
		ofShape("host-ipc", hostIPC),
		ofShape("host-namespaces", hostNetwork, hostPID, hostIPC),
		ofShape("host-namespaces-privileged", hostNetwork, hostPID, hostIPC, privileged),
		ofShape("own-users", ownUsers),
		ofShape("own-users-two", ownUsers, another("second", probeCommand...)),
		ofShape("own-users-shared-pid-two", ownUsers, sharedPID, initially("side", sleepCommand...), asSidecars),
		ofShape("shared-pid", sharedPID),
		ofShape("shared-pid-two", sharedPID, initially("side", sleepCommand...), asSidecars),
		ofShape("two", another("second", probeCommand...)),
		ofShape("hostname", onPod(func(s *v1.PodSpec) { s.Hostname = "named" })),
		ofShape("subdomain", onPod(func(s *v1.PodSpec) { s.Hostname, s.Subdomain = "named", "sub" })),
		ofShape("fqdn", onPod(func(s *v1.PodSpec) { s.Hostname, s.Subdomain, s.SetHostnameAsFQDN = "named", "sub", ptr.To(true) })),
		ofShape("hostname-override", onPod(func(s *v1.PodSpec) { s.HostnameOverride = ptr.To("other.example.com") })),
		ofShape("host-aliases", onPod(func(s *v1.PodSpec) {
			s.HostAliases = []v1.HostAlias{{IP: "192.0.2.7", Hostnames: []string{"a.test", "b.test"}}}
		})),
		ofShape("host-aliases-of-host-network", hostNetwork, onPod(func(s *v1.PodSpec) {
			s.HostAliases = []v1.HostAlias{{IP: "192.0.2.7", Hostnames: []string{"a.test"}}}
		})),
		ofShape("dns-none", onPod(func(s *v1.PodSpec) {
			s.DNSPolicy = v1.DNSNone
			s.DNSConfig = &v1.PodDNSConfig{Nameservers: []string{"192.0.2.1"}, Searches: []string{"a.test"}, Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: ptr.To("2")}}}
		})),
		ofShape("dns-default", onPod(func(s *v1.PodSpec) { s.DNSPolicy = v1.DNSDefault })),
		ofShape("no-service-links", onPod(func(s *v1.PodSpec) { s.EnableServiceLinks = ptr.To(false) })),
		ofShape("sysctl-ports", podSysctl("net.ipv4.ip_unprivileged_port_start", "512"), podSysctl("net.ipv4.ip_local_port_range", "20000 30000")),
		ofShape("sysctl-ping", podSysctl("net.ipv4.ping_group_range", "1 2")),
		ofShape("sysctl-tcp", podSysctl("net.ipv4.tcp_syncookies", "0"), podSysctl("net/ipv4/tcp_keepalive_time", "700")),
		ofShape("sysctl-ipc", podSysctl("kernel.shm_rmid_forced", "1")),
		ofShape("sysctl-own-users", ownUsers, podSysctl("net.ipv4.tcp_syncookies", "0"), podSysctl("kernel.shm_rmid_forced", "1")),
		ofShape("sysctl-host-network", hostNetwork, podSysctl("kernel.shm_rmid_forced", "1")),
	}
}

func resourceShapes() []shape {
	return []shape{
		ofShape("cpu-request", resources("cpu=50m", "")),
		ofShape("cpu-limit", resources("cpu=10m", "cpu=250m")),
		ofShape("cpu-limit-small", resources("cpu=1m", "cpu=5m")),
		ofShape("memory-request", resources("memory=32Mi", "")),
		ofShape("memory-limit", resources("", "memory=64Mi")),
		ofShape("guaranteed", resources("", "cpu=60m memory=64Mi")),
		ofShape("burstable", resources("cpu=30m memory=32Mi", "cpu=300m memory=64Mi")),
		ofShape("ephemeral-storage", resources("ephemeral-storage=1Mi", "ephemeral-storage=100Mi")),
		ofShape("pod-resources", podResources("cpu=20m memory=32Mi", "cpu=500m memory=128Mi"), another("second", probeCommand...)),
		ofShape("pod-and-container-resources", podResources("cpu=20m memory=64Mi", "cpu=500m memory=128Mi"), resources("", "memory=64Mi"), another("second", probeCommand...)),
		ofShape("oom", resources("", "memory=24Mi"), command(payload("eat")...)),
		ofShape("oom-of-child", resources("", "memory=32Mi"), command(payload("feed")...)),
		ofShape("oom-of-one", resources("", "memory=24Mi"), command(payload("eat")...), another("second", payload("exit", "3000", "0")...)),
		ofShape("oom-of-one-restarted", restart(v1.RestartPolicyOnFailure), resources("", "memory=24Mi"), command(payload("eat")...)).until(restarted),
		ofShape("oom-of-pod", podResources("", "memory=32Mi"), command(payload("eat")...)),
		ofShape("oom-shared-pid", sharedPID, resources("", "memory=24Mi"), command(payload("eat")...)),
		ofShape("oom-own-users", ownUsers, resources("", "memory=24Mi"), command(payload("eat")...)),
	}
}

func processShapes() []shape {
	out := []shape{
		ofShape("image-command", fromImage("command")),
		ofShape("image-entrypoint", fromImage("entrypoint")),
		ofShape("image-entrypoint-args", fromImage("entrypoint", "exit", "0", "5")),
		ofShape("image-environment", fromImage("environment", probeCommand...), env(v1.EnvVar{Name: "FROM_IMAGE", Value: "replaced"})),
		ofShape("image-folder", fromImage("folder", probeCommand...)),
		ofShape("image-volume", fromImage("volume", probeCommand...)),
		ofShape("working-dir", onContainer(func(c *v1.Container) { c.WorkingDir = "/data" })),
		ofShape("working-dir-made", onContainer(func(c *v1.Container) { c.WorkingDir = "/made/here" })),
		ofShape("working-dir-made-read-only", readOnlyRoot, onContainer(func(c *v1.Container) { c.WorkingDir = "/made/here" })),
		ofShape("working-dir-of-file", onContainer(func(c *v1.Container) { c.WorkingDir = "/etc/passwd" })),
		ofShape("working-dir-forbidden", asUser, onContainer(func(c *v1.Container) { c.WorkingDir = "/closed" })),
		ofShape("args", onContainer(func(c *v1.Container) {
			c.Command, c.Args, c.Env = payload("say"), []string{"$(NAME)", "$$(NAME) $(ABSENT)", "4"}, []v1.EnvVar{{Name: "NAME", Value: "a value"}}
		})),
		ofShape("env", env(v1.EnvVar{Name: "A", Value: "a value = \"'\n"}, v1.EnvVar{Name: "EMPTY"}, v1.EnvVar{Name: "HOME", Value: "/tmp"},
			v1.EnvVar{Name: "PATH", Value: "/x"}, v1.EnvVar{Name: "B", Value: "$(A) $(B) $$(A)"})),
		ofShape("env-home-empty", env(v1.EnvVar{Name: "HOME"})),
		ofShape("env-downward", env(fieldEnv("NAME", "metadata.name"), fieldEnv("NODE", "spec.nodeName"), fieldEnv("IP", "status.podIP"), fieldEnv("HOST_IP", "status.hostIP"),
			fieldEnv("UID", "metadata.uid"), fieldEnv("LABEL", "metadata.labels['app']"), fieldEnv("NOTE", "metadata.annotations['note']"), fieldEnv("ACCOUNT", "spec.serviceAccountName"))),
		ofShape("env-resources", resources("cpu=20m memory=16Mi", "memory=64Mi"), env(resourceEnv("CPU", "requests.cpu"), resourceEnv("CPUS", "limits.cpu"),
			resourceEnv("MEMORY", "limits.memory"), resourceEnv("STORAGE", "limits.ephemeral-storage"))),
		ofShape("env-objects", onContainer(func(c *v1.Container) {
			conf, keys := v1.LocalObjectReference{Name: "conf"}, v1.LocalObjectReference{Name: "keys"}
			c.EnvFrom = []v1.EnvFromSource{
				{Prefix: "C_", ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: conf}},
				{SecretRef: &v1.SecretEnvSource{LocalObjectReference: keys}},
				{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "absent"}, Optional: ptr.To(true)}},
			}
			c.Env = []v1.EnvVar{
				{Name: "ONE", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: conf, Key: "greeting"}}},
				{Name: "TWO", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: keys, Key: "password"}}},
			}
		})),
		ofShape("stdin", onContainer(func(c *v1.Container) { c.Stdin = true })),
		ofShape("stdin-once", onContainer(func(c *v1.Container) { c.Stdin, c.StdinOnce = true, true })),
		ofShape("tty", terminal),
		ofShape("tty-stdin", terminal, onContainer(func(c *v1.Container) { c.Stdin, c.StdinOnce = true, true })),
		ofShape("tty-user", terminal, asUser),
		ofShape("tty-read-only-root", terminal, readOnlyRoot),
		ofShape("output-both", command(payload("say", "out", "err", "0")...)),
		ofShape("output-lines", command(payload("lines", "300", "0")...)),
		ofShape("output-long", command(payload("flood", "100000")...)),
		ofShape("output-long-tty", terminal, command(payload("flood", "100000")...)),
		ofShape("output-reopened", command(payload("reopen")...)),
		ofShape("output-by-child", command(payload("leave", "3")...)),
		ofShape("children-left", command(payload("abandon", "300", "4")...)),
		ofShape("daemon", command(payload("chain")...)),
		ofShape("exits-at-once", command(payload("look", "/absent")...)),
		ofShape("termination-message", command(payload("save", "/dev/termination-log", "a message", "3")...)),
		ofShape("termination-message-path", onContainer(func(c *v1.Container) { c.TerminationMessagePath = "/data/end/message" }), command(payload("save", "/data/end/message", "a message", "0")...)),
		ofShape("termination-message-of-user", asUser, command(payload("save", "/dev/termination-log", "a message", "0")...)),
		ofShape("termination-message-own-users", ownUsers, command(payload("save", "/dev/termination-log", "a message", "0")...)),
		ofShape("termination-message-from-log", onContainer(func(c *v1.Container) {
			c.TerminationMessagePolicy, c.Command = v1.TerminationMessageFallbackToLogsOnError, payload("say", "", "err", "9")
		})),
		ofShape("command-absent", command("/absent")),
		ofShape("command-absent-in-path", command("absent")),
		ofShape("command-is-file", command("/etc/passwd")),
		ofShape("command-is-folder", command("/data")),
		ofShape("command-is-garbage", command("/garbage")),
		ofShape("command-without-interpreter", command("/script")),
		ofShape("command-forbidden", asUser, command("/closed/program")),
		ofShape("command-absent-own-users", ownUsers, command("/absent")),
	}
	for _, code := range []string{"0", "1", "126", "127", "255"} {
		out = append(out, ofShape("exit-"+code, command(payload("exit", "0", code)...)))
	}
	for _, signal := range []string{"2", "9", "11", "15", "31", "34"} {
		// Go's runtime handles some and prints addresses.
		out = append(out, ofShape("signal-"+signal, command(payload("signal", signal)...)).withoutOutput(),
			ofShape("shared-pid-signal-"+signal, sharedPID, command(payload("signal", signal)...)).withoutOutput())
	}
	return out
}

func volumeShapes(host string) []shape {
	plain, shared := hostPath(host+"/plain", ""), hostPath(host+"/shared", "")
	return []shape{
		ofShape("empty-dir", mounted("/volume", emptyDir("", ""))),
		ofShape("empty-dir-limit", mounted("/volume", emptyDir("", "1Mi"))),
		ofShape("empty-dir-memory", mounted("/memory", emptyDir(v1.StorageMediumMemory, ""))),
		ofShape("empty-dir-memory-limit", mounted("/memory", emptyDir(v1.StorageMediumMemory, "1Mi")), resources("", "memory=64Mi")),
		ofShape("config-map", mounted("/volume", configMapVolume)),
		ofShape("config-map-sub-path", mounted("/volume/file", configMapVolume, subPath("greeting"))),
		ofShape("secret", asUser, mounted("/volume", secretVolume)),
		ofShape("projected", mounted("/volume", projectedVolume), resources("", "memory=64Mi")),
		ofShape("downward-api", mounted("/volume", v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: downwardFiles}})),
		ofShape("host-dir", mounted("/volume", plain)),
		ofShape("host-dir-read-only", mounted("/readonly", plain, readOnlyMount)),
		ofShape("host-dir-recursively-read-only", mounted("/readonly", plain, recursively(v1.RecursiveReadOnlyEnabled))),
		ofShape("host-dir-if-possible-read-only", mounted("/readonly", plain, recursively(v1.RecursiveReadOnlyIfPossible))),
		ofShape("host-dir-created", mounted("/volume", hostPath(host+"/created", v1.HostPathDirectoryOrCreate))),
		ofShape("host-file", mounted("/volume/file", hostPath(host+"/plain/file", v1.HostPathFile))),
		ofShape("host-file-created", mounted("/volume/file", hostPath(host+"/created-file", v1.HostPathFileOrCreate))),
		ofShape("host-file-on-file", mounted("/etc/passwd", hostPath(host+"/passwd", v1.HostPathFile), readOnlyMount)),
		ofShape("host-socket", mounted("/volume/socket", hostPath(host+"/socket", v1.HostPathSocket))),
		ofShape("host-device", mounted("/dev/thing", hostPath("/dev/full", v1.HostPathCharDev))),
		ofShape("host-device-privileged", privileged, mounted("/dev/thing", hostPath("/dev/full", v1.HostPathCharDev))),
		ofShape("host-dev", mounted("/dev", hostPath("/dev", v1.HostPathDirectory))),
		ofShape("host-proc-and-sys", mounted("/host/proc", hostPath("/proc", ""), readOnlyMount), mounted("/host/sys", hostPath("/sys", ""), readOnlyMount)),
		ofShape("host-strict", mounted("/strict", hostPath(host+"/strict", ""))),
		ofShape("host-strict-read-only", mounted("/strict", hostPath(host+"/strict", ""), readOnlyMount)),
		ofShape("host-absent", mounted("/volume", hostPath(host+"/absent", ""))),
		ofShape("sub-path", mounted("/volume", plain, subPath("deep/er"))),
		ofShape("sub-path-created", mounted("/volume", emptyDir("", ""), subPath("a/b"))),
		ofShape("sub-path-file", mounted("/volume/file", plain, subPath("file"), readOnlyMount)),
		ofShape("sub-path-expression", env(fieldEnv("NAME", "metadata.name")), mounted("/volume", emptyDir("", ""), func(m *v1.VolumeMount) { m.SubPathExpr = "of-$(NAME)" })),
		ofShape("host-to-container", mounted("/volume", shared, propagation(v1.MountPropagationHostToContainer))),
		ofShape("bidirectional", privileged, mounted("/volume", shared, propagation(v1.MountPropagationBidirectional))),
		ofShape("no-propagation", mounted("/volume", shared, propagation(v1.MountPropagationNone))),
		ofShape("nested", mounted("/volume", emptyDir("", "")), mounted("/volume/below", emptyDir(v1.StorageMediumMemory, "1Mi")), mounted("/volume/file", plain, subPath("file"))),
		ofShape("nested-in-reverse", mounted("/volume/below", emptyDir(v1.StorageMediumMemory, "1Mi")), mounted("/volume", plain)),
		ofShape("on-etc", mounted("/etc", hostPath(host+"/etc", ""))),
		ofShape("on-tmp", mounted("/tmp", emptyDir("", ""))),
		ofShape("on-dev", privileged, mounted("/dev", emptyDir("", ""))),
		ofShape("on-dev-masked", mounted("/dev", emptyDir("", "")), command(payload("exit", "0", "3")...)).withoutOutput(),
		ofShape("on-dev-memory", privileged, terminal, mounted("/dev", emptyDir(v1.StorageMediumMemory, "1Mi")), mounted("/dev/shm", emptyDir(v1.StorageMediumMemory, "1Mi"))),
		ofShape("on-dev-of-host-and-below", mounted("/dev", hostPath("/dev", v1.HostPathDirectory)), mounted("/dev/shm/volume", emptyDir("", ""))),
		ofShape("on-dev-of-host-own-users", ownUsers, mounted("/dev", hostPath("/dev", v1.HostPathDirectory))),
		ofShape("on-shm", mounted("/dev/shm", emptyDir(v1.StorageMediumMemory, "1Mi"))),
		ofShape("on-hosts", mounted("/etc/hosts", hostPath(host+"/passwd", ""))),
		ofShape("on-resolv-conf", mounted("/etc/resolv.conf", configMapVolume, subPath("greeting"))),
		ofShape("on-cgroup", mounted("/sys/fs/cgroup", hostPath("/sys/fs/cgroup", ""), readOnlyMount)),
		ofShape("on-link", mounted("/link/volume", emptyDir("", ""))),
		ofShape("image-as-volume", mounted("/image", v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: shapeImage, PullPolicy: v1.PullNever}})),
		ofShape("image-as-volume-sub-path", mounted("/image", v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: shapeImage, PullPolicy: v1.PullNever}}, subPath("etc"))),
		ofShape("read-only-root-volumes", readOnlyRoot, asUser, mounted("/memory", emptyDir(v1.StorageMediumMemory, "1Mi")), mounted("/volume", configMapVolume)),
		ofShape("own-users-volumes", ownUsers, asUser, mounted("/volume", emptyDir("", "")), mounted("/memory", emptyDir(v1.StorageMediumMemory, "1Mi")), mounted("/readonly", configMapVolume)),
		ofShape("own-users-host-dir", ownUsers, mounted("/volume", plain), mounted("/readonly", plain, readOnlyMount)),
		ofShape("own-users-image", ownUsers, mounted("/image", v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: shapeImage, PullPolicy: v1.PullNever}})),
		ofShape("privileged-volumes", privileged, mounted("/volume", plain), mounted("/readonly", plain, readOnlyMount)),
	}
}

func lifecycleShapes() []shape {
	ends := payload("exit", "1500", "0")
	return []shape{
		ofShape("init", initially("first", probeCommand...), initially("next", probeCommand...)),
		ofShape("init-fails", initially("first", payload("exit", "0", "3")...)),
		ofShape("init-absent", initially("first", "/absent")),
		ofShape("init-restarted", restart(v1.RestartPolicyOnFailure), mounted("/volume", emptyDir("", "")), initially("first", payload("once", "/volume/mark", "6")...), onPod(func(s *v1.PodSpec) {
			s.InitContainers[0].VolumeMounts = s.Containers[0].VolumeMounts
		})),
		ofShape("sidecar", initially("side", sleepCommand...), asSidecars),
		// The sidecar is stopped when the container main has exited: by then, it must have written.
		ofShape("sidecar-probe", initially("side", append(slices.Clone(probeCommand), "sleep")...), asSidecars, command(payload("exit", "5000", "0")...)),
		ofShape("sidecar-kills", initially("side", payload("ignore", "15")...), asSidecars, command(ends...)),
		ofShape("post-start", withHooks(execHook(payload("touch", "/data/mark")...), nil), command(ends...)),
		ofShape("post-start-fails", withHooks(execHook(payload("exit", "0", "3")...), nil), command(sleepCommand...)),
		ofShape("post-start-absent", withHooks(execHook("/absent"), nil), command(sleepCommand...)),
		ofShape("post-start-sleep", withHooks(&v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 1}}, nil), command(ends...)),
		ofShape("pre-stop", withHooks(nil, execHook(payload("touch", "/data/mark")...)), command(sleepCommand...), deadline),
		ofShape("pre-stop-kills", withHooks(nil, execHook(payload("kill", "1", "2")...)), command(sleepCommand...), deadline),
		ofShape("pre-stop-fails", withHooks(nil, execHook("/absent")), command(sleepCommand...), deadline),
		ofShape("deadline", command(sleepCommand...), deadline),
		ofShape("deadline-ignored", command(payload("ignore", "15")...), deadline),
		ofShape("deadline-shared-pid", sharedPID, command(sleepCommand...), deadline),
		ofShape("deadline-tty", terminal, command(sleepCommand...), deadline),
		ofShape("image-stop-signal", fromImage("stop-signal", payload("ignore", "15")...), deadline),
		ofShape("readiness", command(sleepCommand...), onContainer(func(c *v1.Container) { c.ReadinessProbe = execProbe(payload("look", "/etc/passwd")...) })).until(shapeReady),
		ofShape("startup-fails", command(sleepCommand...), onContainer(func(c *v1.Container) { c.StartupProbe = execProbe(payload("exit", "0", "3")...) })),
		ofShape("liveness-fails", command(sleepCommand...), onContainer(func(c *v1.Container) { c.LivenessProbe = execProbe(payload("exit", "0", "3")...) })),
		ofShape("liveness-absent", command(sleepCommand...), onContainer(func(c *v1.Container) { c.LivenessProbe = execProbe("/absent") })).until(shapeReady),
		ofShape("liveness-times-out", command(sleepCommand...), onContainer(func(c *v1.Container) { c.LivenessProbe = execProbe(sleepCommand...) })),
		ofShape("restart-on-failure", restart(v1.RestartPolicyOnFailure), mounted("/volume", emptyDir("", "")), command(payload("once", "/volume/mark", "6")...)),
		ofShape("restart-always", restart(v1.RestartPolicyAlways), mounted("/volume", emptyDir("", "")), command(payload("once", "/volume/mark", "0", "sleep")...)).until(restarted),
		ofShape("codes-of-two", command(payload("exit", "0", "3")...), another("second", payload("exit", "300", "4")...)),
		ofShape("one-of-two-absent", command("/absent"), another("second", payload("exit", "0", "0")...)),
	}
}
