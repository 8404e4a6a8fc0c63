package connlimit

import "net/netip"

// Origin returns the origin of a remote address like 10.0.0.1:1234: its IP address; for IPv6 its
// /64 network, all of whose addresses one machine can have. Anything else is its own origin.
func Origin(remote string) string {
	a, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	ip := a.Addr().Unmap().WithZone("")
	if ip.Is6() {
		return netip.PrefixFrom(ip, 64).Masked().String()
	}
	return ip.String()
}
