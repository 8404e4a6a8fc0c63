package auth

import "net"

// BoundedTo is Bounded with other bounds.
func BoundedTo(l net.Listener, most, unknown int) net.Listener {
	return limitConnections(l, most, unknown)
}
