package auth

import "net"

// BoundedTo is Bounded with other bounds.
func BoundedTo(l net.Listener, most, unknown int) net.Listener {
	b := Bounded(l).(*boundedListener)
	b.most, b.mostUnknown = most, unknown
	return b
}
