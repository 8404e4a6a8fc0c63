package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Network finds the Node's addresses. See HostNetwork.
type Network struct {
	// Interfaces returns the addresses of this machine's interfaces.
	Interfaces func() ([]netip.Addr, error)
	// Lookup resolves a host name.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// DefaultRoute returns the address of the interface of the default route, in the address family
	// of want.
	DefaultRoute func(want netip.Addr) (netip.Addr, error)
	// Watch calls changed once at first, and after the results of the other functions may have
	// changed, until ctx is done. Address discovery does not need it.
	Watch func(ctx context.Context, changed func()) error
}

// HostNetwork returns the Network of this machine.
func HostNetwork() Network {
	return Network{
		Interfaces: func() ([]netip.Addr, error) {
			addrs, err := net.InterfaceAddrs()
			if err != nil {
				return nil, err
			}
			var out []netip.Addr
			for _, a := range addrs {
				if p, err := netip.ParsePrefix(a.String()); err == nil {
					out = append(out, p.Addr())
				}
			}
			return out, nil
		},
		Lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		},
		DefaultRoute: func(want netip.Addr) (netip.Addr, error) {
			ip, err := utilnet.ResolveBindAddress(net.IP(want.AsSlice()))
			if err != nil {
				return netip.Addr{}, err
			}
			a, ok := netip.AddrFromSlice(ip)
			if !ok {
				return netip.Addr{}, fmt.Errorf("%s is not an IP address", ip)
			}
			return a.Unmap(), nil
		},
		Watch: watchAddresses,
	}
}

// InternalIPs returns the InternalIP addresses of a Node with these settings, primary first; none
// if a cloud provider sets them. It may wait for DNS, at most two seconds. The zero Network stands
// for this machine's.
func InternalIPs(ctx context.Context, s *Settings, n Network) ([]string, error) {
	if n.Interfaces == nil {
		n = HostNetwork()
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addresses, err := findAddresses(ctx, s, n)
	var out []string
	for _, a := range addresses {
		if a.Type == v1.NodeInternalIP {
			out = append(out, a.Address)
		}
	}
	return out, err
}

// findAddresses returns the Node's addresses by the rules of --node-ip: the given IPs, or else the
// name if it is an address, an address that the name resolves to, or the address of the default
// route.
func findAddresses(ctx context.Context, s *Settings, n Network) ([]v1.NodeAddress, error) {
	hostname := v1.NodeAddress{Type: v1.NodeHostName, Address: s.Name}
	given := givenIPs(s)
	if s.ExternalCloudProvider && len(given) == 0 {
		return []v1.NodeAddress{hostname}, nil
	}
	interfaces, err := n.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("addresses of the interfaces: %w", err)
	}
	if len(given) == 0 {
		ip, err := guessAddress(ctx, s, n, interfaces)
		if err != nil {
			return nil, err
		}
		return []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: ip.String()}, hostname}, nil
	}
	var out []v1.NodeAddress
	for _, ip := range given {
		if err := checkAddress(ip, interfaces); err != nil {
			return nil, fmt.Errorf("--node-ip: %w", err)
		}
		out = append(out, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip.String()})
	}
	return append(out, hostname), nil
}

// guessAddress returns the address of a node without --node-ip.
func guessAddress(ctx context.Context, s *Settings, n Network, interfaces []netip.Addr) (netip.Addr, error) {
	if ip, err := netip.ParseAddr(s.Name); err == nil {
		return ip, checkAddress(ip, interfaces)
	}
	want := netip.IPv4Unspecified()
	if len(s.NodeIPs) > 0 {
		want = s.NodeIPs[0]
	}
	// Many machines resolve their own name to a loopback address, which other machines cannot
	// reach.
	found, lookupErr := n.Lookup(ctx, s.Name)
	var usable []netip.Addr
	for _, ip := range found {
		if ip = ip.Unmap(); checkAddress(ip, interfaces) == nil {
			usable = append(usable, ip)
		}
	}
	for _, ip := range usable {
		if ip.Is4() == want.Is4() {
			return ip, nil
		}
	}
	if len(usable) > 0 {
		return usable[0], nil
	}
	ip, err := n.DefaultRoute(want)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("no address of the node found: give one with --node-ip: %w", errors.Join(lookupErr, err))
	}
	return ip, nil
}

// checkAddress returns an error if an address cannot be the node's.
func checkAddress(ip netip.Addr, interfaces []netip.Addr) error {
	switch {
	case ip.IsLoopback():
		return fmt.Errorf("%s is a loopback address", ip)
	case ip.IsMulticast():
		return fmt.Errorf("%s is a multicast address", ip)
	case ip.IsLinkLocalUnicast():
		return fmt.Errorf("%s is a link-local address", ip)
	case ip.IsUnspecified():
		return fmt.Errorf("%s is the unspecified address", ip)
	case !slices.Contains(interfaces, ip):
		return fmt.Errorf("%s is not an address of an interface of this machine", ip)
	}
	return nil
}
