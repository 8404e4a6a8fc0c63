package agenttest

import (
	"context"
	"net/netip"
	"sync"

	"berth/internal/cluster/node"
)

// uplink is the machine's external network interface.
type uplink struct {
	moved chan struct{} // capacity 1

	mu      sync.Mutex
	address netip.Addr // guarded by mu
}

func newUplink() *uplink {
	return &uplink{moved: make(chan struct{}, 1), address: netip.MustParseAddr("192.0.2.10")}
}

// Move changes the address of the machine.
func (w *World) Move(address string) {
	w.uplink.mu.Lock()
	w.uplink.address = netip.MustParseAddr(address)
	w.uplink.mu.Unlock()
	w.uplink.moved <- struct{}{}
}

func (u *uplink) now() netip.Addr {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.address
}

// network is the interface through which the agent reads the address.
func (u *uplink) network() node.Network {
	return node.Network{
		Interfaces:   func() ([]netip.Addr, error) { return []netip.Addr{u.now()}, nil },
		Lookup:       func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{u.now()}, nil },
		DefaultRoute: func(netip.Addr) (netip.Addr, error) { return u.now(), nil },
		Watch: func(ctx context.Context, changed func()) error {
			for {
				changed()
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-u.moved:
				}
			}
		},
	}
}
