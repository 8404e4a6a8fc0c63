package node

import (
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMayMove(t *testing.T) {
	address := func(family, scope byte) []byte { return []byte{family, 24, 0, scope, 0, 0, 0, 1} }
	route := func(family, length byte) []byte { return append([]byte{family, length}, make([]byte, 10)...) }
	for _, c := range []struct {
		name string
		kind uint16
		data []byte
		want bool
	}{
		{"an address comes", unix.RTM_NEWADDR, address(unix.AF_INET, unix.RT_SCOPE_UNIVERSE), true},
		{"an address goes", unix.RTM_DELADDR, address(unix.AF_INET6, unix.RT_SCOPE_UNIVERSE), true},
		{"a pod's interface gets a link-local address", unix.RTM_NEWADDR, address(unix.AF_INET6, unix.RT_SCOPE_LINK), false},
		{"an interface goes up", unix.RTM_NEWROUTE, route(unix.AF_INET, 24), true},
		{"the default route of IPv6 goes", unix.RTM_DELROUTE, route(unix.AF_INET6, 0), true},
		{"a pod's interface gets a link-local route", unix.RTM_NEWROUTE, route(unix.AF_INET6, 64), false},
		{"too short an address", unix.RTM_NEWADDR, address(unix.AF_INET, unix.RT_SCOPE_UNIVERSE)[:4], false},
		{"too short a route", unix.RTM_NEWROUTE, route(unix.AF_INET, 24)[:4], false},
		{"anything else", unix.RTM_NEWLINK, make([]byte, unix.SizeofIfInfomsg), false},
	} {
		if got := mayMove(syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: c.kind}, Data: c.data}); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}
