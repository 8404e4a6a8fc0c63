package server

import (
	"net/netip"
	"sync"
)

// computeOrigin returns the origin of a remote address like 10.0.0.1:1234: its IP address; for IPv6
// its /64 network, all of whose addresses one machine can have. Anything else is its own origin.
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

// sharedLimiter is a limiter with a maximum share per origin, so that one origin cannot exhaust it.
type sharedLimiter struct {
	limit, share int

	mu     sync.Mutex
	inside map[string]int // by origin; no entries of 0
	all    int
}

func newSharedLimiter(limit, share int) *sharedLimiter {
	return &sharedLimiter{limit: limit, share: share, inside: map[string]int{}}
}

func (l *sharedLimiter) enter(origin string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= l.limit || l.inside[origin] >= l.share {
		return false
	}
	l.all++
	l.inside[origin]++
	return true
}

func (l *sharedLimiter) leave(origin string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.inside[origin]--; l.inside[origin] == 0 {
		delete(l.inside, origin)
	}
}
