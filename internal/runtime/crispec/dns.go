package crispec

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

// Limits of a resolver configuration (Kubernetes documentation, "DNS for Services and Pods":
// glibc's limits, and KEP-2595).
const (
	maxServers    = 3
	maxSearches   = 32
	maxSearch     = 253
	maxSearchLine = 2048
)

// Event reasons.
const (
	reasonMissingClusterDNS = "MissingClusterDNS"
	reasonDNSConfigForming  = "DNSConfigForming"
)

// ndots makes the resolver try the search domains first for names with fewer dots, so that
// service.namespace is resolved.
const ndots = "ndots:5"

// DNS is the node's DNS configuration.
type DNS struct {
	// Servers and Domain are the cluster's (KubeletConfiguration clusterDNS and clusterDomain).
	Servers []string
	Domain  string
	// Host is the resolver that pods inherit.
	Host Resolver
	// InCluster: the node is a cluster member, so that pods expect the cluster's servers, and get a
	// warning if there are none.
	InCluster bool
}

// Warning is an event about the pod that its translation causes.
type Warning struct {
	Reason, Message string
	// OfNode is the message of the same event about the node; "": no event about the node.
	OfNode string
}

// Resolver is the content of a resolv.conf.
type Resolver struct{ Servers, Searches, Options []string }

// LoopbackResolver is the resolver of a node without one (resolvConf ""): each pod queries itself.
// ips are the node's addresses.
func LoopbackResolver(ips []string) Resolver {
	r := Resolver{Searches: []string{"."}}
	for _, ip := range OnePerFamily(ips, nil) {
		if is6(ip) {
			r.Servers = append(r.Servers, "::1")
		} else {
			r.Servers = append(r.Servers, "127.0.0.1")
		}
	}
	if len(r.Servers) == 0 {
		r.Servers = []string{"127.0.0.1"}
	}
	return r
}

// ParseResolvConf parses a resolv.conf (resolv.conf(5)). Invalid lines are ignored, as in the C
// library. The last of the lines "search" and "domain" takes effect. The domain "." is ignored, and
// trailing dots of others are removed.
func ParseResolvConf(content []byte) Resolver {
	var r Resolver
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if i := slices.IndexFunc(fields, isComment); i >= 0 {
			fields = fields[:i]
		}
		if len(fields) == 0 {
			continue
		}
		key, values := fields[0], fields[1:]
		switch key {
		case "nameserver":
			if len(values) > 0 && isIP(values[0]) {
				r.Servers = append(r.Servers, values[0])
			}
		case "domain", "search":
			r.Searches = nil
			for _, v := range values {
				if v = strings.TrimRight(v, "."); v != "" {
					r.Searches = append(r.Searches, v)
				}
			}
		case "options":
			r.Options = mergeOptions(r.Options, values)
		}
	}
	return r
}

// clusterSearches is the number of the cluster's search domains in a pod.
const clusterSearches = 3

// ExplainExcess returns which limit of pods the host's resolver, read from path, exceeds, "" for
// none: its search domains must fit into the limits together with those of the cluster.
func (r Resolver) ExplainExcess(path string, dns DNS) string {
	most := maxSearches
	if dns.InCluster && dns.Domain != "" {
		most -= clusterSearches
	}
	switch {
	case len(r.Searches) > most:
		return fmt.Sprintf("Resolv.conf file '%s' contains search line consisting of more than %d domains!", path, most)
	case len(strings.Join(r.Searches, " ")) > maxSearchLine:
		return fmt.Sprintf("Resolv.conf file '%s' contains search line which length is more than allowed %d chars!", path, maxSearchLine)
	}
	return ""
}

// IsLoopback reports whether all servers of the resolver are reachable only from the host itself.
func (r Resolver) IsLoopback() bool {
	return len(r.Servers) > 0 && !slices.ContainsFunc(r.Servers, func(s string) bool {
		ip, err := netip.ParseAddr(s)
		return err != nil || !ip.IsLoopback()
	})
}

// computeDNS returns the resolver of the pod's containers: that of the policy, merged with
// dnsConfig, within the limits.
func computeDNS(p *v1.Pod, dns DNS) (*runtimeapi.DNSConfig, []Warning) {
	out, warnings := policyDNS(p, dns)
	if c := p.Spec.DNSConfig; c != nil {
		var options []string
		for _, o := range c.Options {
			if o.Value != nil && *o.Value != "" {
				options = append(options, o.Name+":"+*o.Value)
			} else {
				options = append(options, o.Name)
			}
		}
		out.Servers = append(out.Servers, c.Nameservers...)
		out.Searches = append(out.Searches, c.Searches...)
		out.Options = mergeOptions(out.Options, options)
	}
	servers, tooMany := fitServers(unique(out.Servers))
	searches, tooLong := fitSearches(unique(out.Searches))
	if tooMany {
		warnings = append(warnings, Warning{Reason: reasonDNSConfigForming, Message: "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: " + strings.Join(servers, " ")})
	}
	if tooLong {
		warnings = append(warnings, Warning{Reason: reasonDNSConfigForming, Message: "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: " + strings.Join(searches, " ")})
	}
	return &runtimeapi.DNSConfig{Servers: servers, Searches: searches, Options: out.Options}, warnings
}

// policyDNS returns the resolver of the pod's dnsPolicy.
func policyDNS(p *v1.Pod, dns DNS) (Resolver, []Warning) {
	host := Resolver{slices.Clone(dns.Host.Servers), slices.Clone(dns.Host.Searches), slices.Clone(dns.Host.Options)}
	policy := p.Spec.DNSPolicy
	if policy == "" {
		policy = v1.DNSClusterFirst
	}
	switch {
	case policy == v1.DNSNone:
		return Resolver{}, nil
	case policy == v1.DNSDefault, policy == v1.DNSClusterFirst && p.Spec.HostNetwork:
		return host, nil
	case len(dns.Servers) > 0:
		r := Resolver{Servers: slices.Clone(dns.Servers), Options: []string{ndots}}
		if d := strings.Trim(dns.Domain, "."); d != "" {
			r.Searches = []string{p.Namespace + ".svc." + d, "svc." + d, d}
		}
		for _, s := range host.Searches {
			if s != "." { // from LoopbackResolver; it would be resolved at the root
				r.Searches = append(r.Searches, s)
			}
		}
		return r, nil
	case !dns.InCluster:
		return host, nil
	}
	missing := fmt.Sprintf("kubelet does not have ClusterDNS IP configured and cannot create Pod using %q policy. Falling back to %q policy.", policy, v1.DNSDefault)
	return host, []Warning{{Reason: reasonMissingClusterDNS, Message: fmt.Sprintf("pod: %q. %s", pod.Describe(p), missing), OfNode: missing}}
}

// InheritsResolver reports whether the pod's resolver depends on the host's.
func InheritsResolver(p *v1.Pod) bool { return p.Spec.DNSPolicy != v1.DNSNone }

// mergeOptions merges the options; those in over replace earlier ones of the same name.
func mergeOptions(options, over []string) []string {
	name := func(option string) string {
		n, _, _ := strings.Cut(option, ":")
		return n
	}
	for _, o := range over {
		i := slices.IndexFunc(options, func(have string) bool { return name(have) == name(o) })
		if i < 0 {
			options = append(options, o)
		} else {
			options[i] = o
		}
	}
	return options
}

func fitServers(servers []string) (fit []string, exceeded bool) {
	if len(servers) > maxServers {
		return servers[:maxServers], true
	}
	return servers, false
}

// fitSearches drops domains that are too long, and those that exceed the limits of the whole line.
func fitSearches(searches []string) (fit []string, exceeded bool) {
	length := 0
	for _, s := range searches {
		if len(s) > maxSearch {
			exceeded = true
			continue
		}
		length += len(s)
		if len(fit) == maxSearches || length+len(fit) > maxSearchLine { // a blank before each but the first
			return fit, true
		}
		fit = append(fit, s)
	}
	return fit, exceeded
}

// unique returns the strings without duplicates.
func unique(s []string) []string {
	var out []string
	for _, v := range s {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// OnePerFamily returns the first address of each family, the family of the first of nodeIPs first:
// the form in which addresses are reported to a pod (Kubernetes documentation, "IPv4/IPv6
// dual-stack").
func OnePerFamily(ips, nodeIPs []string) []string {
	var out []string
	for _, ip := range ips {
		if len(out) == 0 || len(out) == 1 && is6(ip) != is6(out[0]) {
			out = append(out, ip)
		}
	}
	if len(out) == 2 && len(nodeIPs) > 0 && is6(out[0]) != is6(nodeIPs[0]) {
		slices.Reverse(out)
	}
	return out
}

func is6(ip string) bool { return strings.Contains(ip, ":") }

func isIP(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

func isComment(field string) bool { return field[0] == '#' || field[0] == ';' }
