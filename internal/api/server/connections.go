package server

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// warnEvery is the minimum interval of warnings about closed connections: any client of a port can
// cause them.
const warnEvery = time.Minute

// connections are the open connections of a listener. A connection is a stranger until one of its
// requests is admitted. Strangers have a separate limit: at the limit, a new one replaces an old
// one, so that idle clients cannot lock out others, and admitted clients are not affected.
//
// The replaced connection is one of the origin that has the most. There is no limit per origin,
// because many clients may share an address, such as that of a proxy.
type connections struct {
	name   string
	limits limits
	log    *slog.Logger

	mu        sync.Mutex
	strangers []*conn        // oldest first
	origins   map[string]int // number of strangers of each
	known     int
	closed    int // replaced strangers since the last warning
	warned    time.Time
}

func newConnections(name string, l limits, log *slog.Logger) *connections {
	return &connections{name: name, limits: l, log: log, origins: map[string]int{}}
}

// conn is one connection of a listener.
type conn struct {
	net.Conn
	all    *connections
	origin string
	spoke  atomic.Bool // the client has sent data

	// Guarded by all.mu.
	isKnown, ended bool
}

// boundedListener tracks the connections that it accepts.
type boundedListener struct {
	net.Listener
	all *connections
}

// Accept implements net.Listener.
func (l boundedListener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: accepted, all: l.all, origin: computeOrigin(accepted.RemoteAddr().String())}
	leaves, closed := l.all.add(c)
	if leaves != nil {
		_ = leaves.Conn.Close() // the error does not matter
	}
	if closed > 0 {
		l.all.log.Warn(l.all.name+": too many unauthenticated connections are open, closing some",
			"limit", l.all.limits.strangers, "closed", closed, "from", leaves.origin)
	}
	return c, nil
}

// add adds a stranger. It returns the connection that is replaced, or nil, and how many were
// replaced since the last warning, if a warning is due.
func (s *connections) add(c *conn) (leaves *conn, closed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.origins[c.origin]++
	if len(s.strangers) >= s.limits.strangers {
		leaves = chooseLeaving(s.strangers, s.origins)
		s.forget(leaves)
		s.closed++
		if now := time.Now(); now.Sub(s.warned) >= warnEvery {
			closed, s.warned, s.closed = s.closed, now, 0
		}
	}
	s.strangers = append(s.strangers, c)
	return leaves, closed
}

// chooseLeaving returns the connection to replace: of the origin with the most connections, the
// oldest that has sent nothing, or else the oldest.
func chooseLeaving(strangers []*conn, origins map[string]int) *conn {
	var best *conn
	var most int
	var spoke bool
	for _, c := range strangers {
		n, talks := origins[c.origin], c.spoke.Load()
		if best == nil || n > most || n == most && spoke && !talks {
			best, most, spoke = c, n, talks
		}
	}
	return best
}

// forget removes a connection. The caller holds the lock.
func (s *connections) forget(c *conn) {
	if c.ended {
		return
	}
	c.ended = true
	if c.isKnown {
		s.known--
		return
	}
	s.leave(c)
}

// leave removes a connection from the strangers. The caller holds the lock.
func (s *connections) leave(c *conn) {
	if i := slices.Index(s.strangers, c); i >= 0 {
		s.strangers = slices.Delete(s.strangers, i, i+1)
	}
	if s.origins[c.origin]--; s.origins[c.origin] == 0 {
		delete(s.origins, c.origin)
	}
}

// letIn makes a stranger known. At the limit of known connections it stays a stranger, which has no
// effect until the strangers reach their limit, too.
func (s *connections) letIn(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.ended || c.isKnown || s.known >= s.limits.known {
		return
	}
	s.leave(c)
	c.isKnown = true
	s.known++
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
	c.all.mu.Lock()
	c.all.forget(c)
	c.all.mu.Unlock()
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

// withConn returns a context with the connection, for requests on it. It is an http.Server's
// ConnContext.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// letIn makes the connection of a request known.
func letIn(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		c.all.letIn(c)
	}
}
