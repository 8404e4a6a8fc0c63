package podresources

import (
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// warnEvery is the minimum interval between warnings about closed connections.
const warnEvery = time.Minute

// connections are the open connections, at most maxConnections. A new connection replaces another
// one then, so that a client that leaks connections does not block others.
type connections struct {
	log *slog.Logger

	mu     sync.Mutex
	open   []*conn   // guarded by mu; oldest first
	closed int       // guarded by mu; replaced since the last warning
	warned time.Time // guarded by mu
}

func newConnections(log *slog.Logger) *connections { return &connections{log: log} }

// conn is a connection with the ID of the process that opened it; 0: unknown.
type conn struct {
	net.Conn
	all     *connections
	process int32
}

// boundedListener limits the connections that it accepts.
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
	c := &conn{Conn: accepted, all: l.all, process: processOf(accepted)}
	leaves, closed := l.all.add(c)
	if leaves != nil {
		_ = leaves.Conn.Close() // the error does not matter
	}
	if closed > 0 {
		l.all.log.Warn("pod-resources API: connections are closed to make room: too many are open",
			"limit", maxConnections, "closed", closed, "process", leaves.process)
	}
	return c, nil
}

// add adds a connection. It returns the connection to close for it, or nil. If a warning is due,
// closed is the number of connections closed since the last one.
func (s *connections) add(c *conn) (leaves *conn, closed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) >= maxConnections {
		leaves = chooseLeaving(s.open, c)
		s.forget(leaves)
		s.closed++
		if now := time.Now(); now.Sub(s.warned) >= warnEvery {
			closed, s.warned, s.closed = s.closed, now, 0
		}
	}
	s.open = append(s.open, c)
	return leaves, closed
}

// chooseLeaving returns the connection to close for a new one: the oldest of the process with the
// most connections. open is sorted, oldest first.
func chooseLeaving(open []*conn, comes *conn) *conn {
	count := map[int32]int{comes.process: 1}
	for _, c := range open {
		count[c.process]++
	}
	best := open[0]
	for _, c := range open {
		if count[c.process] > count[best.process] {
			best = c
		}
	}
	return best
}

// forget removes a connection; mu must be held.
func (s *connections) forget(c *conn) {
	if i := slices.Index(s.open, c); i >= 0 {
		s.open = slices.Delete(s.open, i, i+1)
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.all.mu.Lock()
	c.all.forget(c)
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// processOf returns the process at the other end of a Unix socket (unix(7), SO_PEERCRED); 0 if
// unknown.
func processOf(c net.Conn) int32 {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return 0
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0
	}
	var process int32
	if err := raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			process = cred.Pid
		}
	}); err != nil {
		return 0
	}
	return process
}
