// Package crispec translates a v1.Pod to CRI: the configuration of its sandbox and of each
// container.
//
// Owns: the translation of names, environment, mounts, security and resources, as pure functions.
// Reads: only its arguments.
// Never: does I/O, decides whether a container starts.
package crispec

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/util/sysctl"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/runtime/cri"
	"berth/internal/runtime/userns"
)

// Sandbox is the input of a sandbox's configuration.
type Sandbox struct {
	Pod     *v1.Pod
	Attempt uint32
	// LogDirectory is the pod's log directory; containers' log paths are relative to it.
	LogDirectory string
	// CgroupParent is the pod's cgroup in the cgroup driver's format.
	CgroupParent string
	// DNS is the node's DNS configuration.
	DNS DNS
	// Resources configures how resources become kernel values.
	Resources ResourceSettings
	// Users is the host ID range of a pod with a user namespace; nil for one without.
	Users *userns.Range
	// VolumeGroups are the supplemental groups that the pod's volumes require.
	VolumeGroups []int64
}

// SandboxConfig returns the CRI configuration of the pod's sandbox, and warnings for the user.
// Errors are user errors.
func SandboxConfig(s Sandbox) (*runtimeapi.PodSandboxConfig, []Warning, error) {
	p := s.Pod
	hostname, err := kernelName(p, s.DNS.Domain)
	if err != nil {
		return nil, nil, err
	}
	security, err := sandboxSecurity(s)
	if err != nil {
		return nil, nil, err
	}
	dns, warnings := computeDNS(p, s.DNS)
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: p.Name, Namespace: p.Namespace, Uid: string(p.UID), Attempt: s.Attempt},
		Hostname:     hostname,
		LogDirectory: s.LogDirectory,
		DnsConfig:    dns,
		Labels:       cri.SandboxLabels(p),
		Annotations:  p.Annotations,
		PortMappings: portMappings(p),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    s.CgroupParent,
			SecurityContext: security,
			Sysctls:         sysctls(p),
			Overhead:        Overhead(p, s.Resources),
			Resources:       SandboxResources(p, s.Resources),
		},
	}, warnings, nil
}

// portMappings returns the ports of regular containers and sidecars, without duplicates. A pod in
// the host network has none.
func portMappings(p *v1.Pod) []*runtimeapi.PortMapping {
	if p.Spec.HostNetwork {
		return nil
	}
	var out []*runtimeapi.PortMapping
	type key struct {
		proto    runtimeapi.Protocol
		ip       string
		port     int32
		hostPort int32
	}
	seen := map[key]bool{}
	for c := range servingContainers(p) {
		for _, port := range c.Ports {
			k := key{protocol(port.Protocol), port.HostIP, port.ContainerPort, port.HostPort}
			if seen[k] {
				continue
			}
			seen[k] = true
			out = append(out, &runtimeapi.PortMapping{Protocol: k.proto, ContainerPort: k.port, HostPort: k.hostPort, HostIp: k.ip})
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

// sysctls returns the pod's kernel parameters by their names with dots, in either notation
// (sysctl.d(5)).
func sysctls(p *v1.Pod) map[string]string {
	if p.Spec.SecurityContext == nil || len(p.Spec.SecurityContext.Sysctls) == 0 {
		return nil
	}
	out := map[string]string{}
	for _, s := range p.Spec.SecurityContext.Sysctls {
		out[sysctl.NormalizeName(s.Name)] = s.Value
	}
	return out
}
