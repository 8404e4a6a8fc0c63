package validation

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// Limits of resolv.conf in a pod (kubernetes.io/docs/concepts/services-networking/dns-pod-service).
const (
	maxNameservers    = 3
	maxSearchDomains  = 32
	maxSearchChars    = 2048
	maxHostnameLength = 64 // of a Linux node name, utsname(2)
)

// validateHost checks the pod's host names and the host namespaces that it uses.
func validateHost(spec *v1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.Hostname != "" {
		errs = append(errs, invalid(path.Child("hostname"), spec.Hostname, validation.IsDNS1123Label(spec.Hostname))...)
	}
	if spec.Subdomain != "" {
		errs = append(errs, invalid(path.Child("subdomain"), spec.Subdomain, validation.IsDNS1123Label(spec.Subdomain))...)
	}
	if name := spec.HostnameOverride; name != nil {
		at := path.Child("hostnameOverride")
		errs = append(errs, invalid(at, *name, validation.IsDNS1123Subdomain(*name))...)
		if len(*name) > maxHostnameLength {
			errs = append(errs, field.TooLong(at, *name, maxHostnameLength))
		}
		if ptr.Deref(spec.SetHostnameAsFQDN, false) {
			errs = append(errs, field.Forbidden(at, "may not be set together with `setHostnameAsFQDN`"))
		}
		if spec.HostNetwork {
			errs = append(errs, field.Forbidden(at, "may not be set together with `hostNetwork`"))
		}
	}
	for i, a := range spec.HostAliases {
		at := path.Child("hostAliases").Index(i)
		errs = append(errs, validation.IsValidIPForLegacyField(at.Child("ip"), a.IP, true, nil)...)
		for j, name := range a.Hostnames {
			errs = append(errs, invalid(at.Child("hostnames").Index(j), name, validation.IsDNS1123Subdomain(name))...)
		}
	}
	if spec.HostPID && ptr.Deref(spec.ShareProcessNamespace, false) {
		errs = append(errs, field.Invalid(path.Child("shareProcessNamespace"), true,
			"ShareProcessNamespace and HostPID cannot both be enabled"))
	}
	if !ptr.Deref(spec.HostUsers, true) {
		shared := []struct {
			field string
			on    bool
		}{{"hostNetwork", spec.HostNetwork}, {"hostPID", spec.HostPID}, {"hostIPC", spec.HostIPC}}
		for _, s := range shared {
			if s.on {
				errs = append(errs, field.Forbidden(path.Child(s.field), "when `hostUsers` is false"))
			}
		}
		errs = append(errs, forbidDevices(spec.Containers, path.Child("containers"))...)
		errs = append(errs, forbidDevices(spec.InitContainers, path.Child("initContainers"))...)
	}
	return errs
}

// forbidDevices checks that no container in a user namespace gets a block device, whose owner is a
// host user.
func forbidDevices(containers []v1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range containers {
		if len(containers[i].VolumeDevices) > 0 {
			errs = append(errs, field.Forbidden(path.Index(i).Child("volumeDevices"), "when `hostUsers` is false"))
		}
	}
	return errs
}

func validateDNS(spec *v1.PodSpec, path *field.Path) field.ErrorList {
	errs := validateEnum(spec.DNSPolicy, path.Child("dnsPolicy"),
		v1.DNSClusterFirstWithHostNet, v1.DNSClusterFirst, v1.DNSDefault, v1.DNSNone)
	at := path.Child("dnsConfig")
	c := spec.DNSConfig
	if c == nil {
		if spec.DNSPolicy == v1.DNSNone {
			errs = append(errs, field.Required(at, fmt.Sprintf("must provide `dnsConfig` when `dnsPolicy` is %s", v1.DNSNone)))
		}
		return errs
	}
	if spec.DNSPolicy == v1.DNSNone && len(c.Nameservers) == 0 {
		return append(errs, field.Required(at.Child("nameservers"),
			fmt.Sprintf("must provide at least one DNS nameserver when `dnsPolicy` is %s", v1.DNSNone)))
	}
	if len(c.Nameservers) > maxNameservers {
		errs = append(errs, field.Invalid(at.Child("nameservers"), c.Nameservers,
			fmt.Sprintf("must not have more than %d nameservers", maxNameservers)))
	}
	for i, ns := range c.Nameservers {
		errs = append(errs, validation.IsValidIPForLegacyField(at.Child("nameservers").Index(i), ns, true, nil)...)
	}
	if len(c.Searches) > maxSearchDomains {
		errs = append(errs, field.Invalid(at.Child("searches"), c.Searches,
			fmt.Sprintf("must not have more than %d search paths", maxSearchDomains)))
	}
	if len(strings.Join(c.Searches, " ")) > maxSearchChars {
		errs = append(errs, field.Invalid(at.Child("searches"), c.Searches,
			fmt.Sprintf("must not have more than %d characters (including spaces) in the search list", maxSearchChars)))
	}
	for i, search := range c.Searches {
		// A single dot is the root, a trailing one makes the domain absolute; underscores occur in
		// search paths.
		if name := strings.TrimSuffix(search, "."); search != "." {
			errs = append(errs, invalid(at.Child("searches").Index(i), search, validation.IsDNS1123SubdomainWithUnderscore(name))...)
		}
	}
	for i, o := range c.Options {
		if o.Name == "" {
			errs = append(errs, field.Required(at.Child("options").Index(i), "must not be empty"))
		}
	}
	return errs
}

// hostPort identifies a host port of a pod.
type hostPort struct {
	protocol v1.Protocol
	ip       string
	port     int32
}

// validatePorts checks the ports of one container; taken has the host ports of the previous
// containers.
func validatePorts(ports []v1.ContainerPort, taken map[hostPort]struct{}, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := map[string]struct{}{}
	for i, p := range ports {
		at := path.Index(i)
		if p.Name != "" {
			if msgs := validation.IsValidPortName(p.Name); len(msgs) > 0 {
				errs = append(errs, invalid(at.Child("name"), p.Name, msgs)...)
			} else if _, ok := names[p.Name]; ok {
				errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
			}
			names[p.Name] = struct{}{}
		}
		if p.ContainerPort == 0 {
			errs = append(errs, field.Required(at.Child("containerPort"), ""))
		} else {
			errs = append(errs, invalid(at.Child("containerPort"), p.ContainerPort, validation.IsValidPortNum(int(p.ContainerPort)))...)
		}
		errs = append(errs, validateEnum(p.Protocol, at.Child("protocol"), v1.ProtocolSCTP, v1.ProtocolTCP, v1.ProtocolUDP)...)
		if p.HostIP != "" {
			errs = append(errs, validation.IsValidIPForLegacyField(at.Child("hostIP"), p.HostIP, false, nil)...)
		}
		if p.HostPort == 0 {
			continue
		}
		errs = append(errs, invalid(at.Child("hostPort"), p.HostPort, validation.IsValidPortNum(int(p.HostPort)))...)
		key := hostPort{p.Protocol, p.HostIP, p.HostPort}
		if _, ok := taken[key]; ok {
			errs = append(errs, field.Duplicate(at.Child("hostPort"), fmt.Sprintf("%s/%s/%d", p.Protocol, p.HostIP, p.HostPort)))
		}
		taken[key] = struct{}{}
	}
	return errs
}

// validateHostPorts checks the ports of a container on the host network.
func validateHostPorts(ports []v1.ContainerPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, p := range ports {
		if p.HostPort != p.ContainerPort {
			errs = append(errs, field.Invalid(path.Index(i).Child("hostPort"), p.HostPort, "must match `containerPort` when `hostNetwork` is true"))
		}
	}
	return errs
}
