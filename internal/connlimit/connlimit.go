// Package connlimit limits the open connections of a listener, so that clients that connect and
// stay silent, or connect without end, do not lock out others.
//
// Owns: which connection a new one replaces at a limit.
// Reads: whether the client of a connection has sent data.
// Never: decides which clients are admitted, logs.
package connlimit

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// warnEvery is the minimum interval of calls of Config.Warn: any client can cause them.
const warnEvery = time.Minute

// Config is the configuration of a listener.
type Config struct {
	// Unadmitted is the maximum number of connections none of whose requests was admitted (Begin).
	Unadmitted int
	// Admitted is the maximum number of admitted connections. At the limit, further ones stay
	// unadmitted, which has no effect until those reach their limit, too.
	Admitted int
	// Total is the maximum number of all connections; 0: the sum of the other two. At this limit, a
	// new connection replaces an unadmitted one or else the admitted one that has been idle for
	// longest; if there is neither, it is closed at once.
	Total int
	// Origin returns the origin of a connection, as a comparable value; nil: all have the same.
	// There is no limit per origin, because many clients may share one, such as a proxy.
	Origin func(net.Conn) any
	// Warn, if not nil, is called when connections have been replaced, at most once a minute:
	// closed is their number since the last call, origin that of the newest.
	Warn func(closed int, origin any)
}

// Listen returns a listener that accepts the connections of l within the limits. At the limit of
// unadmitted connections, a new one replaces another one, of the origin that has the most: the
// oldest that has sent nothing, or else the oldest.
func Listen(l net.Listener, cfg Config) net.Listener {
	return &listener{Listener: l, cfg: cfg, origins: map[any]int{}, admitted: map[*conn]struct{}{}}
}

type listener struct {
	net.Listener
	cfg Config

	mu         sync.Mutex
	unadmitted []*conn            // guarded by mu; oldest first
	origins    map[any]int        // guarded by mu; number of unadmitted connections of each
	admitted   map[*conn]struct{} // guarded by mu
	closed     int                // guarded by mu; replaced since the last warning
	warned     time.Time          // guarded by mu
}

type conn struct {
	net.Conn
	of     *listener
	origin any
	spoke  atomic.Bool // the client has sent data

	requests int       // guarded by of.mu; admitted ones in progress
	idle     time.Time // guarded by of.mu; end of the last admitted request
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: accepted, of: l}
		if l.cfg.Origin != nil {
			c.origin = l.cfg.Origin(accepted)
		}
		replaced, closed, ok := l.add(c)
		if replaced != nil {
			_ = replaced.Conn.Close() // its client detects that, or has disconnected
		}
		if closed > 0 && l.cfg.Warn != nil {
			l.cfg.Warn(closed, replaced.origin)
		}
		if ok {
			return c, nil
		}
		_ = accepted.Close()
	}
}

// add adds a connection, if it is within the limits. It returns the connection that is replaced, or
// nil, and how many were replaced since the last warning, if a warning is due.
func (l *listener) add(c *conn) (replaced *conn, closed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.origins[c.origin]++
	l.unadmitted = append(l.unadmitted, c)
	open := l.unadmitted[:len(l.unadmitted)-1]
	switch {
	case len(open) >= l.cfg.Unadmitted:
		replaced = chooseUnadmitted(open, l.origins)
	case l.cfg.Total > 0 && len(open)+len(l.admitted) >= l.cfg.Total:
		if replaced = chooseUnadmitted(open, l.origins); replaced == nil {
			replaced = l.longestIdle()
		}
		if replaced == nil {
			l.remove(c)
			return nil, 0, false
		}
	}
	if replaced == nil {
		return nil, 0, true
	}
	l.remove(replaced)
	l.closed++
	if now := time.Now(); now.Sub(l.warned) >= warnEvery {
		closed, l.warned, l.closed = l.closed, now, 0
	}
	return replaced, closed, true
}

// chooseUnadmitted returns the connection to replace: of the origin with the most connections, the
// oldest that has sent nothing, or else the oldest. It returns nil if there is none.
func chooseUnadmitted(open []*conn, origins map[any]int) *conn {
	var best *conn
	var most int
	var spoke bool
	for _, c := range open {
		n, talks := origins[c.origin], c.spoke.Load()
		if best == nil || n > most || n == most && spoke && !talks {
			best, most, spoke = c, n, talks
		}
	}
	return best
}

// longestIdle returns the admitted connection that has been idle for longest; nil if each has a
// request in progress. mu is held.
func (l *listener) longestIdle() *conn {
	var found *conn
	for c := range l.admitted {
		if c.requests == 0 && (found == nil || c.idle.Before(found.idle)) {
			found = c
		}
	}
	return found
}

// remove removes a connection, if it is not removed yet. mu is held.
func (l *listener) remove(c *conn) {
	delete(l.admitted, c)
	l.removeUnadmitted(c)
}

// removeUnadmitted removes a connection from the unadmitted ones, and reports whether it was one.
// mu is held.
func (l *listener) removeUnadmitted(c *conn) bool {
	i := slices.Index(l.unadmitted, c)
	if i < 0 {
		return false
	}
	l.unadmitted = slices.Delete(l.unadmitted, i, i+1)
	if l.origins[c.origin]--; l.origins[c.origin] == 0 {
		delete(l.origins, c.origin)
	}
	return true
}

// begin admits the connection, within the limit, and counts a request until done is called.
func (c *conn) begin() (done func()) {
	l := c.of
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.admitted) < l.cfg.Admitted && l.removeUnadmitted(c) {
		l.admitted[c] = struct{}{}
	}
	c.requests++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		c.requests--
		c.idle = time.Now()
	}
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.spoke.Load() {
		c.spoke.Store(true)
	}
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.of.mu.Lock()
	c.of.remove(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite closes the direction to the client, if the connection supports it.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

type connKey struct{}

// ConnContext returns a context with the connection, for Begin. It is an http.Server's ConnContext.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if limited, ok := c.(*conn); ok {
		return context.WithValue(ctx, connKey{}, limited)
	}
	return ctx
}

// Begin admits the connection of a request, and counts the request as in progress until done is
// called. Without a connection of a limited listener, it has no effect.
func Begin(ctx context.Context) (done func()) {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		return c.begin()
	}
	return func() {}
}
