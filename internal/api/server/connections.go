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

// warnEvery is how often at most a warning says that connections are closed: whoever reaches a port
// can cause it.
const warnEvery = time.Minute

// connections are those that a listener has open. A connection is a stranger's until a request of
// it is let in. Strangers have a share of their own: when it is full, the next one takes the place
// of another, so that nobody's silence keeps others out, and those who were let in lose nothing by
// it.
//
// The one that is closed for another is of the origin that has the most. Many clients may have one
// address, such as that of a proxy, and so none has a limit that is only its own.
type connections struct {
	name   string
	limits limits
	log    *slog.Logger

	mu        sync.Mutex
	strangers []*conn        // the oldest first
	origins   map[string]int // how many strangers are of each
	known     int
	closed    int // for others, since the last warning
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
	spoke  atomic.Bool // something came from the client

	// Guarded by the lock of all.
	isKnown, ended bool
}

// boundedListener accounts for the connections that it accepts.
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
		_ = leaves.Conn.Close() // how that went does not matter
	}
	if closed > 0 {
		l.all.log.Warn(l.all.name+": too many unauthenticated connections are open, closing some",
			"limit", l.all.limits.strangers, "closed", closed, "from", leaves.origin)
	}
	return c, nil
}

// add takes a stranger. It returns the one that has to leave for it, or nil, and how many have left
// since the last warning, if it is time for the next.
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

// chooseLeaving returns the one that is closed for one more: of the origin that has the most, the
// oldest that has said nothing, or else the oldest.
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

// forget ends the account of a connection. The caller holds the lock.
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

// leave takes a connection from the strangers. The caller holds the lock.
func (s *connections) leave(c *conn) {
	if i := slices.Index(s.strangers, c); i >= 0 {
		s.strangers = slices.Delete(s.strangers, i, i+1)
	}
	if s.origins[c.origin]--; s.origins[c.origin] == 0 {
		delete(s.origins, c.origin)
	}
}

// letIn makes a stranger known. When too many are, it stays a stranger, which costs it nothing
// until they are too many, too.
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

// CloseWrite ends the direction to the client, if the connection can end one alone.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

type connKey struct{}

// withConn returns a context that knows its connection, for requests of it. It is a http.Server's
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
