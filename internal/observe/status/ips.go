package status

import (
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
)

// setIPs sets host and pod addresses: at most one per family, the node's primary family first.
func setIPs(s *v1.PodStatus, in Input) {
	hosts := onePerFamily(parseIPs(in.HostIPs))
	for _, ip := range hosts {
		s.HostIPs = append(s.HostIPs, v1.HostIP{IP: ip.String()})
	}
	if len(hosts) > 0 {
		s.HostIP = hosts[0].String()
	}
	for _, ip := range podIPs(in, hosts) {
		s.PodIPs = append(s.PodIPs, v1.PodIP{IP: ip.String()})
	}
	if len(s.PodIPs) > 0 {
		s.PodIP = s.PodIPs[0].IP
	}
}

func podIPs(in Input, hosts []netip.Addr) []netip.Addr {
	var old []string
	for _, ip := range in.Old.PodIPs {
		old = append(old, ip.IP)
	}
	known := parseIPs(old)
	if in.Pod.Spec.HostNetwork {
		// Once reported, they stay even if the node's change: other components have used them. A
		// second family may be added.
		return onePerFamily(append(known, hosts...))
	}
	observed := parseIPs(in.Observed.IPs)
	if len(observed) == 0 && in.Observed.ReadySandbox() == nil {
		return known // terminated or restarting: the last addresses
	}
	primary6 := len(hosts) > 0 && hosts[0].Is6()
	if len(hosts) == 0 && len(observed) > 0 {
		primary6 = observed[0].Is6()
	}
	out := onePerFamily(observed)
	if len(out) == 2 && out[0].Is6() != primary6 {
		out[0], out[1] = out[1], out[0]
	}
	return out
}

// FamilyMismatch describes a problem with the addresses of a host-network pod, "" if there is none:
// the reported ones stay, and the node now has another primary IP family.
func FamilyMismatch(p *v1.Pod, s *v1.PodStatus) string {
	if !p.Spec.HostNetwork || len(s.PodIPs) == 0 || len(s.HostIPs) == 0 {
		return ""
	}
	var ofPod, ofHost []string
	for _, ip := range s.PodIPs {
		ofPod = append(ofPod, ip.IP)
	}
	for _, ip := range s.HostIPs {
		ofHost = append(ofHost, ip.IP)
	}
	if pods, hosts := parseIPs(ofPod), parseIPs(ofHost); len(pods) == 0 || len(hosts) == 0 || pods[0].Is6() == hosts[0].Is6() {
		return ""
	}
	return fmt.Sprintf("podIPs %s stay as they were reported, and their primary IP family is not that of hostIPs %s: recreate the pod to change them", ofPod, ofHost)
}

// parseIPs returns the valid addresses in canonical form.
func parseIPs(texts []string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		if ip, err := netip.ParseAddr(t); err == nil {
			out = append(out, ip.Unmap())
		}
	}
	return out
}

// onePerFamily returns the first address and the first of the other family.
func onePerFamily(ips []netip.Addr) []netip.Addr {
	for i, ip := range ips {
		if ip.Is6() != ips[0].Is6() {
			return []netip.Addr{ips[0], ips[i]}
		}
	}
	return ips[:min(len(ips), 1)]
}
