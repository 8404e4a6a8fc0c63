package agenttest

import (
	"context"
	"net"
	"net/http"
	"sync"
	"syscall"

	"berth/internal/runtime/cri"
)

// gate connects one agent to its environment. A closed gate blocks everything, as if the agent's
// process had been killed.
type gate struct {
	dial   cri.Dialer
	plugin func(ctx context.Context, socket string) (net.Conn, error)
	api    http.RoundTripper // nil without an API server

	mu     sync.Mutex
	closed bool        // guarded by mu
	conns  []net.Conn  // guarded by mu; to the runtime and to plugins
	armed  *callStrike // guarded by mu; nil for none
}

// callStrike is a fault at a call.
type callStrike struct {
	left   int // calls until then
	moment Moment
	then   func(call string)
}

var errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

// Dial connects to the runtime.
func (g *gate) Dial(ctx context.Context, address string) (net.Conn, error) {
	return g.keep(g.dial(ctx, address))
}

// DialPlugin connects to the socket of a plugin.
func (g *gate) DialPlugin(ctx context.Context, socket string) (net.Conn, error) {
	return g.keep(g.plugin(ctx, socket))
}

// keep returns a connection that is closed with the gate.
func (g *gate) keep(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		_ = conn.Close() // it is unused
		return nil, errRefused
	}
	g.conns = append(g.conns, conn)
	return conn, nil
}

// RoundTrip sends a request to the API server.
func (g *gate) RoundTrip(r *http.Request) (*http.Response, error) {
	strike, closed := g.next(r)
	if closed {
		return nil, errRefused
	}
	if strike == nil {
		return g.api.RoundTrip(r)
	}
	if strike.moment == AfterCall {
		if resp, err := g.api.RoundTrip(r); err == nil {
			_ = resp.Body.Close() // its reader was killed
		}
	}
	strike.then(r.Method + " " + r.URL.Path)
	return nil, errRefused
}

// next counts a request, and returns its fault, or nil.
func (g *gate) next(r *http.Request) (strike *callStrike, closed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.armed == nil || ofNode(r.URL.Path) {
		return nil, g.closed
	}
	if g.armed.left--; g.armed.left > 0 {
		return nil, false
	}
	strike, g.armed = g.armed, nil
	return strike, false
}

func (g *gate) arm(s *callStrike) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed = s
}

// close closes the connections to runtime and plugins, and blocks new ones.
func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	conns := g.conns
	g.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // it may be closed already
	}
}

func (g *gate) isClosed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}
