package auth

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"
)

// How many connections of the port may be open: in all, and of clients who have not shown yet who
// they are.
const (
	mostConnections = 1024
	mostUnknown     = 256
)

// Bounded returns a listener that has a bounded number of connections open. One too many takes the
// place of the connection that has waited longest without a request under way: first of a client
// who has not shown who he is, then of any. Without such a one it is closed at once.
//
// So a client that is silent or slow keeps nobody out.
func Bounded(l net.Listener) net.Listener {
	return &boundedListener{Listener: l, most: mostConnections, mostUnknown: mostUnknown, open: map[*connection]struct{}{}}
}

type boundedListener struct {
	net.Listener
	most, mostUnknown int

	mu      sync.Mutex
	open    map[*connection]struct{} // guarded by mu
	unknown int                      // guarded by mu; of open
}

// connection is one of them.
type connection struct {
	net.Conn
	of *boundedListener

	known    bool      // guarded by of.mu; its client has shown who he is
	requests int       // guarded by of.mu; under way, of a client that is known
	since    time.Time // guarded by of.mu; when it was opened, or its last request ended
}

// Accept returns the next connection that there is room for.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &connection{Conn: conn, of: l, since: time.Now()}
		gone, ok := l.add(c)
		if gone != nil {
			_ = gone.Close() // its client finds out, or is gone
		}
		if ok {
			return c, nil
		}
		_ = conn.Close()
	}
}

// add makes room for a connection, and adds it. gone is the one whose place it takes.
func (l *boundedListener) add(c *connection) (gone *connection, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.unknown >= l.mostUnknown:
		gone = l.oldest((*connection).isUnknown)
	case len(l.open) >= l.most:
		if gone = l.oldest((*connection).isUnknown); gone == nil {
			gone = l.oldest((*connection).isIdle)
		}
		if gone == nil {
			return nil, false
		}
	}
	if gone != nil {
		l.remove(gone)
	}
	l.open[c] = struct{}{}
	l.unknown++
	return gone, true
}

// oldest returns the connection that has waited longest, of some. mu is held.
func (l *boundedListener) oldest(is func(*connection) bool) *connection {
	var found *connection
	for c := range l.open {
		if is(c) && (found == nil || c.since.Before(found.since)) {
			found = c
		}
	}
	return found
}

// isUnknown reports whether a client has not shown who he is. of.mu is held.
func (c *connection) isUnknown() bool { return !c.known }

// isIdle reports whether a client that is known asks nothing at the moment. of.mu is held.
func (c *connection) isIdle() bool { return c.known && c.requests == 0 }

// remove forgets a connection. mu is held.
func (l *boundedListener) remove(c *connection) {
	if _, ok := l.open[c]; !ok {
		return
	}
	delete(l.open, c)
	if !c.known {
		l.unknown--
	}
}

// Close closes the connection.
func (c *connection) Close() error {
	c.of.mu.Lock()
	c.of.remove(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// begin counts a request of a client that is known. done ends it.
func (c *connection) begin() (done func()) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if _, open := c.of.open[c]; open && !c.known {
		c.of.unknown--
	}
	c.known = true
	c.requests++
	return func() {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		c.requests--
		c.since = time.Now()
	}
}

type connectionKey struct{}

// withConnection remembers by which connection a request comes, if it is one of a listener that is
// bounded.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	t, ok := c.(*tls.Conn)
	if !ok {
		return ctx
	}
	bounded, ok := t.NetConn().(*connection)
	if !ok {
		return ctx
	}
	return context.WithValue(ctx, connectionKey{}, bounded)
}

// beginRequest counts a request of a client that is known at its connection.
func beginRequest(ctx context.Context) (done func()) {
	if c, ok := ctx.Value(connectionKey{}).(*connection); ok {
		return c.begin()
	}
	return func() {}
}
