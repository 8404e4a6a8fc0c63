package server

import (
	"net/netip"
	"sync"
)

// computeOrigin returns what stands for the sender of a remote address like 10.0.0.1:1234: its IP address, of version 6 the network of 64 bits, all of
// whose addresses one machine can have. What is no address of IP stands for itself.
func computeOrigin(remote string) string {
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

// sharedGate is a gate of which each origin has at most a share, so that one alone does not close it for others.
type sharedGate struct {
	limit, share int

	mu     sync.Mutex
	inside map[string]int // by origin; without those that have nobody inside
	all    int
}

func newSharedGate(limit, share int) *sharedGate {
	return &sharedGate{limit: limit, share: share, inside: map[string]int{}}
}

func (g *sharedGate) enter(origin string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all >= g.limit || g.inside[origin] >= g.share {
		return false
	}
	g.all++
	g.inside[origin]++
	return true
}

func (g *sharedGate) leave(origin string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all--
	if g.inside[origin]--; g.inside[origin] == 0 {
		delete(g.inside, origin)
	}
}
