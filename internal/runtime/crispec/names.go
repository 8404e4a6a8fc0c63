package crispec

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
)

const (
	// maxLabel is the maximum length of a DNS label, to which a host name derived from the pod's
	// name is truncated.
	maxLabel = 63
	// maxKernelName is the kernel's maximum host name length (HOST_NAME_MAX of limits.h).
	maxKernelName = 64
)

// Names are a pod's names in its network (Kubernetes documentation, "DNS for Services and Pods").
type Names struct {
	Host string
	// Domain follows Host in the full name; "" for a pod without a subdomain.
	Domain string
}

// ComputeNames returns the pod's names. A hostnameOverride is the whole name and has no domain
// (KEP-4762); otherwise the name is spec.hostname or the pod's name, truncated to a DNS label. The
// domain is that of the pod's headless service. If clusterDomain is "", the full name ends with a
// dot, as in the kubelet, which counts for its length.
func ComputeNames(p *v1.Pod, clusterDomain string) Names {
	if o := p.Spec.HostnameOverride; o != nil && *o != "" {
		return Names{Host: *o}
	}
	n := Names{Host: p.Name}
	if p.Spec.Hostname != "" {
		n.Host = p.Spec.Hostname
	}
	if len(n.Host) > maxLabel {
		n.Host = strings.TrimRight(n.Host[:maxLabel], "-.")
	}
	if p.Spec.Subdomain != "" {
		n.Domain = p.Spec.Subdomain + "." + p.Namespace + ".svc." + strings.Trim(clusterDomain, ".")
	}
	return n
}

// Full returns the fully qualified name, or the host name if there is no domain.
func (n Names) Full() string {
	if n.Domain == "" {
		return n.Host
	}
	return n.Host + "." + n.Domain
}

// kernelName returns the host name in the pod's UTS namespace: "" for a pod in the host network,
// which shares the host's name.
func kernelName(p *v1.Pod, clusterDomain string) (string, error) {
	if p.Spec.HostNetwork {
		return "", nil
	}
	n := ComputeNames(p, clusterDomain)
	if !isTrue(p.Spec.SetHostnameAsFQDN) || n.Domain == "" {
		return n.Host, nil
	}
	full := n.Full()
	if len(full) > maxKernelName {
		return "", fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is the max, %d characters requested)",
			full, maxKernelName, len(full))
	}
	return full, nil
}

// HostsFile returns the managed /etc/hosts of a pod with its own network.
func HostsFile(n Names, ips []string, aliases []v1.HostAlias) []byte {
	b := []byte("# Kubernetes-managed hosts file.\n" +
		"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
	for _, ip := range ips {
		b = append(b, ip+"\t"...)
		if n.Domain != "" {
			b = append(b, n.Full()+"\t"...)
		}
		b = append(b, n.Host+"\n"...)
	}
	return appendAliases(b, aliases)
}

// NodeHostsFile returns the /etc/hosts of a pod in the host network: the node's file with the pod's
// aliases.
func NodeHostsFile(node []byte, aliases []v1.HostAlias) []byte {
	b := append([]byte("# Kubernetes-managed hosts file (host network).\n"), node...)
	if len(node) > 0 && node[len(node)-1] != '\n' {
		b = append(b, '\n') // otherwise the node's last line and ours would be joined
	}
	return appendAliases(b, aliases)
}

func appendAliases(b []byte, aliases []v1.HostAlias) []byte {
	if len(aliases) == 0 {
		return b
	}
	b = append(b, "\n# Entries added by HostAliases.\n"...)
	for _, a := range aliases {
		b = append(b, a.IP...)
		for _, h := range a.Hostnames {
			b = append(b, "\t"+h...)
		}
		b = append(b, '\n')
	}
	return b
}
