package auth

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"
)

// Maximum numbers of open connections of the port: in all, and of unauthenticated clients.
const (
	mostConnections = 1024
	mostUnknown     = 256
)

// Bounded returns a listener with a bounded number of open connections. A connection above the
// limit replaces the one that has been idle for longest, first of an unauthenticated client, then
// of any. If there is none, it is closed at once.
//
// So a silent or slow client does not block others.
func Bounded(l net.Listener) net.Listener {
	return &boundedListener{Listener: l, most: mostConnections, mostUnknown: mostUnknown, open: map[*connection]struct{}{}}
}

type boundedListener struct {
	net.Listener
	most, mostUnknown int

	mu      sync.Mutex
	open    map[*connection]struct{} // guarded by mu
	unknown int                      // guarded by mu; unauthenticated ones in open
}

type connection struct {
	net.Conn
	of *boundedListener

	known    bool      // guarded by of.mu; its client is authenticated
	requests int       // guarded by of.mu; in progress, of an authenticated client
	since    time.Time // guarded by of.mu; when it was opened, or its last request ended
}

// Accept returns the next connection within the limits.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &connection{Conn: conn, of: l, since: time.Now()}
		gone, ok := l.add(c)
		if gone != nil {
			_ = gone.Close() // its client detects that, or has disconnected
		}
		if ok {
			return c, nil
		}
		_ = conn.Close()
	}
}

// add adds a connection within the limits. gone is the connection that it replaces.
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

// oldest returns the connection that has been idle for longest, of those that is matches. mu is
// held.
func (l *boundedListener) oldest(is func(*connection) bool) *connection {
	var found *connection
	for c := range l.open {
		if is(c) && (found == nil || c.since.Before(found.since)) {
			found = c
		}
	}
	return found
}

// isUnknown reports whether the client is unauthenticated. of.mu is held.
func (c *connection) isUnknown() bool { return !c.known }

// isIdle reports whether an authenticated client has no request in progress. of.mu is held.
func (c *connection) isIdle() bool { return c.known && c.requests == 0 }

// remove removes a connection from open. mu is held.
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

// begin counts a request of an authenticated client as in progress until done is called.
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

// withConnection stores the connection of a bounded listener in the context.
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

// beginRequest counts an authenticated request of the context's connection.
func beginRequest(ctx context.Context) (done func()) {
	if c, ok := ctx.Value(connectionKey{}).(*connection); ok {
		return c.begin()
	}
	return func() {}
}
