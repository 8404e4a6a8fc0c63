package node

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Pods show the addresses that the Node shows: a machine may have many addresses, and the first one
// may be of a network that nobody else is in.
func TestHostIPs(t *testing.T) {
	first, second, six := netip.MustParseAddr("192.0.2.15"), netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")
	network := Network{
		Interfaces:   func() ([]netip.Addr, error) { return []netip.Addr{first, second, six}, nil },
		Lookup:       func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{second, six}, nil },
		DefaultRoute: func(netip.Addr) (netip.Addr, error) { return first, nil },
	}
	unknown := network
	unknown.Lookup = func(context.Context, string) ([]netip.Addr, error) { return nil, context.DeadlineExceeded }
	for _, c := range []struct {
		name    string
		nodeIPs []netip.Addr
		network Network
		want    []string
	}{
		{"given", []netip.Addr{second}, unknown, []string{"192.0.2.10"}},
		{"given, of both families", []netip.Addr{six, second}, network, []string{"2001:db8::10", "192.0.2.10"}},
		{"given, and no interface has it yet", []netip.Addr{netip.MustParseAddr("192.0.2.99")}, network, []string{"192.0.2.99"}},
		{"by the name", nil, network, []string{"192.0.2.10"}},
		{"by the name, of the family that is preferred", []netip.Addr{netip.IPv6Unspecified()}, network, []string{"2001:db8::10"}},
		{"by the default route", nil, unknown, []string{"192.0.2.15"}},
	} {
		h := NewHostIPs(&Settings{Name: "box", NodeIPs: c.nodeIPs}, c.network, "berth", slog.New(slog.DiscardHandler))
		if diff := cmp.Diff(c.want, h.Current()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	if diff := cmp.Diff([]string{"192.0.2.15"}, NewHostIPs(nil, network, "berth", slog.New(slog.DiscardHandler)).Current()); diff != "" {
		t.Errorf("without a Node (-want +got):\n%s", diff)
	}
}

// A serving certificate is for the addresses that the node has now.
func TestHostIPsOfCertificates(t *testing.T) {
	address := netip.MustParseAddr("192.0.2.10")
	h := NewHostIPs(&Settings{Name: "box"}, Network{
		Interfaces:   func() ([]netip.Addr, error) { return []netip.Addr{address}, nil },
		Lookup:       func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{address}, nil },
		DefaultRoute: func(netip.Addr) (netip.Addr, error) { return address, nil },
	}, "berth", slog.New(slog.DiscardHandler))
	for _, want := range []string{"192.0.2.10", "192.0.2.77"} {
		address = netip.MustParseAddr(want)
		h.refresh()
		if got := h.IPs(); len(got) != 1 || got[0].String() != want {
			t.Errorf("got %v, want %s", got, want)
		}
	}
}

// Changes come several at a time: they are looked at once, and only addresses that are others are
// published.
func TestFollowHostIPs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var address atomic.Value
		address.Store(netip.MustParseAddr("192.0.2.10"))
		wake := make(chan func(), 1)
		h := NewHostIPs(nil, Network{
			Interfaces:   func() ([]netip.Addr, error) { return nil, nil },
			DefaultRoute: func(netip.Addr) (netip.Addr, error) { return address.Load().(netip.Addr), nil },
			Watch: func(ctx context.Context, changed func()) error {
				wake <- changed
				<-ctx.Done()
				return ctx.Err()
			},
		}, "berth", slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		published := 0
		go func() { ended <- h.Follow(ctx, func() { published++ }) }()
		changed := <-wake
		for _, c := range []struct {
			address string
			want    int
		}{{"192.0.2.10", 0}, {"192.0.2.77", 1}, {"192.0.2.77", 1}} {
			address.Store(netip.MustParseAddr(c.address))
			changed()
			changed()
			time.Sleep(2 * quietPeriod)
			synctest.Wait()
			if published != c.want || h.Current()[0] != c.address {
				t.Errorf("%s: published %d times, want %d; current %v", c.address, published, c.want, h.Current())
			}
		}
		cancel()
		if err := <-ended; err != context.Canceled {
			t.Errorf("Follow: %v", err)
		}
	})
}
