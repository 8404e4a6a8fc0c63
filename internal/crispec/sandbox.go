// Package crispec translates a v1.Pod into the runtime's terms: the configuration of its sandbox and of each container.
//
// Owns: the translation of names, environment, mounts, security and resources, as pure functions.
// Reads: only its arguments.
// Never: does I/O, decides whether something starts.
package crispec

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
)

// maxHostname is the kernel's limit of a host name (HOST_NAME_MAX is 64, of which Kubernetes uses 63: one DNS label).
const maxHostname = 63

// Sandbox is what a sandbox is made from.
type Sandbox struct {
	Pod     *v1.Pod
	Attempt uint32
	// LogDirectory is the pod's log folder; containers' log paths are relative to it.
	LogDirectory string
	// CgroupParent is the pod's cgroup in the form of the cgroup driver.
	CgroupParent string
}

// SandboxConfig returns the CRI configuration of the pod's sandbox.
func SandboxConfig(s Sandbox) *runtimeapi.PodSandboxConfig {
	p := s.Pod
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: p.Name, Namespace: p.Namespace, Uid: string(p.UID), Attempt: s.Attempt},
		LogDirectory: s.LogDirectory,
		DnsConfig:    dnsConfig(p),
		Labels:       cri.SandboxLabels(p),
		Annotations:  p.Annotations,
		PortMappings: portMappings(p),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: s.CgroupParent,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: namespaces(p),
				Privileged:       anyPrivileged(p),
				Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			},
			Sysctls: sysctls(p),
		},
	}
	if !p.Spec.HostNetwork {
		cfg.Hostname = Hostname(p)
	}
	if sc := p.Spec.SecurityContext; sc != nil {
		l := cfg.Linux.SecurityContext
		l.RunAsUser, l.RunAsGroup = int64Value(sc.RunAsUser), int64Value(sc.RunAsGroup)
		l.SupplementalGroups = supplementalGroups(p)
		l.SupplementalGroupsPolicy = groupsPolicy(sc)
		l.SelinuxOptions = selinux(sc.SELinuxOptions)
	}
	return cfg
}

// Hostname returns the host name of the pod's containers: hostnameOverride, spec.hostname or the pod's name, cut to a DNS label.
func Hostname(p *v1.Pod) string {
	name := p.Name
	switch {
	case p.Spec.HostnameOverride != nil && *p.Spec.HostnameOverride != "":
		return *p.Spec.HostnameOverride
	case p.Spec.Hostname != "":
		name = p.Spec.Hostname
	}
	if len(name) > maxHostname {
		name = strings.TrimRight(name[:maxHostname], "-.")
	}
	return name
}

func namespaces(p *v1.Pod) *runtimeapi.NamespaceOption {
	mode := func(host bool, own runtimeapi.NamespaceMode) runtimeapi.NamespaceMode {
		if host {
			return runtimeapi.NamespaceMode_NODE
		}
		return own
	}
	pid := runtimeapi.NamespaceMode_CONTAINER
	if s := p.Spec.ShareProcessNamespace; s != nil && *s {
		pid = runtimeapi.NamespaceMode_POD
	}
	return &runtimeapi.NamespaceOption{
		Network: mode(p.Spec.HostNetwork, runtimeapi.NamespaceMode_POD),
		Ipc:     mode(p.Spec.HostIPC, runtimeapi.NamespaceMode_POD),
		Pid:     mode(p.Spec.HostPID, pid),
		UsernsOptions: &runtimeapi.UserNamespace{
			Mode: runtimeapi.NamespaceMode_NODE,
		},
	}
}

// portMappings returns the host ports of regular containers and sidecars; a port that is named twice is mapped once.
func portMappings(p *v1.Pod) []*runtimeapi.PortMapping {
	if p.Spec.HostNetwork {
		return nil
	}
	var out []*runtimeapi.PortMapping
	type key struct {
		proto    v1.Protocol
		ip       string
		port     int32
		hostPort int32
	}
	seen := map[key]bool{}
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			for _, port := range list[i].Ports {
				k := key{port.Protocol, port.HostIP, port.ContainerPort, port.HostPort}
				if seen[k] || port.HostPort == 0 {
					continue
				}
				seen[k] = true
				out = append(out, &runtimeapi.PortMapping{
					Protocol: protocol(port.Protocol), ContainerPort: port.ContainerPort, HostPort: port.HostPort, HostIp: port.HostIP,
				})
			}
		}
	}
	return out
}

func protocol(p v1.Protocol) runtimeapi.Protocol {
	switch p {
	case v1.ProtocolUDP:
		return runtimeapi.Protocol_UDP
	case v1.ProtocolSCTP:
		return runtimeapi.Protocol_SCTP
	}
	return runtimeapi.Protocol_TCP
}

// dnsConfig returns the resolver of a pod with dnsPolicy None; for the others the runtime copies the host's.
func dnsConfig(p *v1.Pod) *runtimeapi.DNSConfig {
	if p.Spec.DNSPolicy != v1.DNSNone {
		return nil
	}
	out := &runtimeapi.DNSConfig{}
	if c := p.Spec.DNSConfig; c != nil {
		out.Servers, out.Searches = c.Nameservers, c.Searches
		for _, o := range c.Options {
			if o.Value != nil {
				out.Options = append(out.Options, o.Name+":"+*o.Value)
			} else {
				out.Options = append(out.Options, o.Name)
			}
		}
	}
	return out
}

func sysctls(p *v1.Pod) map[string]string {
	if p.Spec.SecurityContext == nil || len(p.Spec.SecurityContext.Sysctls) == 0 {
		return nil
	}
	out := map[string]string{}
	for _, s := range p.Spec.SecurityContext.Sysctls {
		out[strings.ReplaceAll(s.Name, "/", ".")] = s.Value
	}
	return out
}
