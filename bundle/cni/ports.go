package cni

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// protocols are the protocols with ports.
var protocols = map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}

// check validates a port mapping.
func (m portMapping) check() error {
	for name, port := range map[string]int{"hostPort": m.HostPort, "containerPort": m.ContainerPort} {
		if port < 1 || port > 65535 {
			return fail(types.ErrInvalidNetworkConfig, "portMappings: %s %d is not from 1 to 65535", name, port)
		}
	}
	if _, ok := protocols[strings.ToLower(m.Protocol)]; !ok {
		return fail(types.ErrInvalidNetworkConfig, "portMappings: protocol %q of port %d is none of tcp, udp and sctp", m.Protocol, m.HostPort)
	}
	if m.HostIP != "" {
		if _, err := netip.ParseAddr(m.HostIP); err != nil {
			return fail(types.ErrInvalidNetworkConfig, "portMappings: hostIP %q of port %d is no address", m.HostIP, m.HostPort)
		}
	}
	return nil
}

// mappingElement is a port mapping as an element of one of a ruleset's maps.
type mappingElement struct {
	port    portMapping
	set     *nftables.Set
	element nftables.SetElement
}

// comment identifies the attachment of an element.
func (a attachment) comment() string {
	const longest = 128 // what nft shows
	if c := a.id + " " + a.ifName; len(c) <= longest {
		return c
	}
	return a.hostName("")
}

// mappings returns the elements for the ports of a pod with these addresses.
func (r *ruleset) mappings(ports []portMapping, addresses []netip.Addr, of attachment) []mappingElement {
	var all []mappingElement
	for _, m := range ports {
		host, _ := netip.ParseAddr(m.HostIP) // validated; an invalid address means any
		host = host.Unmap()
		proto := protocols[strings.ToLower(m.Protocol)]
		for _, a := range addresses {
			if host.IsValid() && host.Is4() != a.Is4() {
				continue
			}
			f := r.familyOf(a)
			set, key := f.ports, portKey(proto, m.HostPort)
			if host.IsValid() && !host.IsUnspecified() {
				set, key = f.addrPorts, append(host.AsSlice(), key...)
			}
			all = append(all, mappingElement{m, set, nftables.SetElement{
				Key: key, Val: append(a.AsSlice(), word(m.ContainerPort)...), Comment: of.comment(),
			}})
		}
	}
	return all
}

func (r *ruleset) familyOf(a netip.Addr) family {
	if a.Is4() {
		return r.families[0]
	}
	return r.families[1]
}

// portKey and word pad their values to the four bytes that a concatenated key needs.
func portKey(proto byte, port int) []byte { return append([]byte{proto, 0, 0, 0}, word(port)...) }
func word(port int) []byte                { return []byte{byte(port >> 8), byte(port), 0, 0} }

// open opens host ports. A port that another pod has is rejected, unless that pod has no lease any
// more.
func (r *ruleset) open(ports []mappingElement, l *leases) error {
	for _, m := range ports {
		have, err := r.conn.GetSetElements(m.set)
		if err != nil {
			return fmt.Errorf("nftables: map %s: %w", m.set.Name, err)
		}
		for _, e := range have {
			if !bytes.Equal(e.Key, m.element.Key) || e.Comment == m.element.Comment && bytes.Equal(e.Val, m.element.Val) {
				continue
			}
			hasLease, err := l.hasLease(e.Comment)
			if err != nil {
				return err
			}
			if e.Comment != m.element.Comment && hasLease {
				id, _, _ := strings.Cut(e.Comment, " ")
				return fail(types.ErrTryAgainLater, "host port %d/%s is in use by %s: end it first, or choose another port", m.port.HostPort, m.port.Protocol, id)
			}
			if err := r.conn.SetDeleteElements(m.set, []nftables.SetElement{{Key: e.Key, Val: e.Val}}); err != nil {
				return err
			}
		}
		if err := r.conn.SetAddElements(m.set, []nftables.SetElement{m.element}); err != nil {
			return fmt.Errorf("nftables: map %s: %w", m.set.Name, err)
		}
	}
	return r.commit("open host ports")
}

// hasLease reports whether the attachment with the comment has a lease.
func (l *leases) hasLease(comment string) (bool, error) {
	all, err := l.list()
	for _, a := range all {
		if a.comment() == comment {
			return true, nil
		}
	}
	return false, err
}

// closePorts closes the host ports of the attachments whose comments match, and returns
// them.
func (r *ruleset) closePorts(matches func(comment string) bool) ([]portMapping, error) {
	var closed []portMapping
	for _, f := range r.families {
		for _, set := range []*nftables.Set{f.ports, f.addrPorts} {
			have, err := r.conn.GetSetElements(set)
			if isMissing(err) {
				return nil, nil // no table
			}
			if err != nil {
				return nil, fmt.Errorf("nftables: map %s: %w", set.Name, err)
			}
			var out []nftables.SetElement
			for _, e := range have {
				if matches(e.Comment) {
					out = append(out, nftables.SetElement{Key: e.Key, Val: e.Val})
					closed = append(closed, portOf(e.Key))
				}
			}
			if len(out) == 0 {
				continue
			}
			if err := r.conn.SetDeleteElements(set, out); err != nil {
				return nil, fmt.Errorf("nftables: map %s: %w", set.Name, err)
			}
		}
	}
	if len(closed) == 0 {
		return nil, nil
	}
	return closed, r.commit("close host ports")
}

// portOf parses a key, which ends with protocol and port.
func portOf(key []byte) portMapping {
	if len(key) < 8 {
		return portMapping{}
	}
	end := key[len(key)-8:]
	m := portMapping{HostPort: int(end[4])<<8 | int(end[5])}
	for name, proto := range protocols {
		if proto == end[0] {
			m.Protocol = name
		}
	}
	return m
}

// isMissing reports whether an error of nftables means that the table does not exist, or that the
// kernel has no nftables (EINVAL) or netfilter. The library preserves only the text of most errors.
func isMissing(err error) bool {
	return err != nil && slices.ContainsFunc([]error{unix.ENOENT, unix.EINVAL, unix.EPROTONOSUPPORT}, func(missing error) bool {
		return errors.Is(err, missing) || strings.Contains(err.Error(), missing.Error())
	})
}

// has reports whether an element is in its map.
func (r *ruleset) has(m mappingElement) (bool, error) {
	have, err := r.conn.GetSetElements(m.set)
	if err != nil && !isMissing(err) {
		return false, fmt.Errorf("nftables: map %s: %w", m.set.Name, err)
	}
	for _, e := range have {
		if bytes.Equal(e.Key, m.element.Key) && bytes.Equal(e.Val, m.element.Val) {
			return true, nil
		}
	}
	return false, nil
}

// forgetConnections deletes the conntrack entries of UDP host ports: they would redirect as long as
// packets arrive. TCP connections end by themselves.
func forgetConnections(ports []portMapping) {
	for _, m := range ports {
		if strings.ToLower(m.Protocol) != "udp" {
			continue
		}
		filter := &netlink.ConntrackFilter{}
		_ = filter.AddProtocol(unix.IPPROTO_UDP)
		_ = filter.AddPort(netlink.ConntrackOrigDstPort, uint16(m.HostPort))
		for _, f := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			// A kernel without connection tracking has no entries.
			_, _ = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, f, filter)
		}
	}
}

// routeLocalnet allows packets from a loopback address of the host to reach pods through their host
// ports.
func routeLocalnet(bridge string) error {
	if err := setSysctl("net/ipv4/conf/"+bridge+"/route_localnet", "1"); err != nil {
		return fmt.Errorf("let 127.0.0.1 reach host ports: %w", err)
	}
	return nil
}
