package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/config"
	"berth/internal/node"
)

// Pods are told of their node what the Node tells of itself: a machine may have many addresses, and the first one may be of a network that
// nobody else is in.
func TestHostIPs(t *testing.T) {
	first, second, six := netip.MustParseAddr("192.0.2.15"), netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")
	network := node.Network{
		Interfaces:   func() ([]netip.Addr, error) { return []netip.Addr{first, second, six}, nil },
		Lookup:       func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{second, six}, nil },
		DefaultRoute: func(netip.Addr) (netip.Addr, error) { return first, nil },
	}
	unknown := network
	unknown.Lookup = func(context.Context, string) ([]netip.Addr, error) { return nil, context.DeadlineExceeded }
	for _, c := range []struct {
		name    string
		nodeIPs []netip.Addr
		network node.Network
		want    []string
	}{
		{"given", []netip.Addr{second}, unknown, []string{"192.0.2.10"}},
		{"given, of both families", []netip.Addr{six, second}, network, []string{"2001:db8::10", "192.0.2.10"}},
		{"given, and no interface has it yet", []netip.Addr{netip.MustParseAddr("192.0.2.99")}, network, []string{"192.0.2.99"}},
		{"by the name", nil, network, []string{"192.0.2.10"}},
		{"by the name, of the family that is preferred", []netip.Addr{netip.IPv6Unspecified()}, network, []string{"2001:db8::10"}},
		{"by the default route", nil, unknown, []string{"192.0.2.15"}},
	} {
		k := &config.Kubelet{NodeIPs: c.nodeIPs}
		if diff := cmp.Diff(c.want, hostIPs(k, "box", c.network, slog.New(slog.DiscardHandler))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	if diff := cmp.Diff([]string{"192.0.2.15"}, hostIPs(nil, "box", network, slog.New(slog.DiscardHandler))); diff != "" {
		t.Errorf("berth run (-want +got):\n%s", diff)
	}
}

// A serving certificate is for the addresses that the node has now.
func TestHostAddressesOfCertificates(t *testing.T) {
	address := netip.MustParseAddr("192.0.2.10")
	h := newHostAddresses(&config.Kubelet{}, "box", node.Network{
		Interfaces:   func() ([]netip.Addr, error) { return []netip.Addr{address}, nil },
		Lookup:       func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{address}, nil },
		DefaultRoute: func(netip.Addr) (netip.Addr, error) { return address, nil },
	}, slog.New(slog.DiscardHandler))
	for _, want := range []string{"192.0.2.10", "192.0.2.77"} {
		address = netip.MustParseAddr(want)
		h.refresh()
		if got := h.addresses(); len(got) != 1 || got[0].String() != want {
			t.Errorf("got %v, want %s", got, want)
		}
	}
}
