package streams

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// lingerTimeout bounds how long closing a stream waits for the client to read everything and close
// its side.
const lingerTimeout = 30 * time.Second

// upgradingWriter responds to a request that is upgraded, and stores the connection as a
// clientConn.
type upgradingWriter struct {
	http.ResponseWriter
	ctx  context.Context // of the request: the connection is closed with it
	idle time.Duration
	conn *clientConn // nil until hijacked
}

func (w *upgradingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements http.Hijacker.
func (w *upgradingWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.conn = newClientConn(w.ctx, conn, buffered.Reader, w.idle)
	return w.conn, bufio.NewReadWriter(bufio.NewReader(w.conn), bufio.NewWriter(w.conn)), nil
}

// close closes the connection, if there is one, and waits for it.
func (w *upgradingWriter) close() {
	if w.conn != nil {
		_ = w.conn.Close() // an error of the client does not matter any more
	}
}

// farewellTimeout is how long a stream whose request is cancelled may send its last data.
const farewellTimeout = time.Second

// clientConn is the upgraded connection of a client. It is closed when its context is done, or
// after an idle timeout.
//
// Close lets the client read to the end first: a socket that is closed with unread data, or
// receives data afterwards (a ping, unused input), is reset by the kernel, and written data in
// transit is lost (RFC 9112, section 9.6).
type clientConn struct {
	net.Conn
	in      *bufio.Reader // has the data received with the request
	idle    time.Duration
	timer   *time.Timer
	stop    func() bool
	hang    func() error // closes the connection immediately
	closing func() error
	closed  atomic.Bool
}

func newClientConn(ctx context.Context, conn net.Conn, in *bufio.Reader, idle time.Duration) *clientConn {
	c := &clientConn{Conn: conn, in: in, idle: idle, hang: sync.OnceValue(conn.Close)}
	c.closing = sync.OnceValue(c.linger)
	c.timer = time.AfterFunc(idle, func() { _ = c.hang() })
	c.stop = context.AfterFunc(ctx, func() { time.AfterFunc(farewellTimeout, func() { _ = c.hang() }) })
	return c
}

func (c *clientConn) Read(b []byte) (int, error) {
	n, err := c.in.Read(b)
	c.used(n)
	return n, err
}

func (c *clientConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.used(n)
	return n, err
}

func (c *clientConn) used(n int) {
	if n > 0 && !c.closed.Load() {
		c.timer.Reset(c.idle)
	}
}

// Close closes the connection and returns when the client has closed it too, or after
// lingerTimeout.
func (c *clientConn) Close() error { return c.closing() }

func (c *clientConn) linger() error {
	c.closed.Store(true)
	c.timer.Reset(lingerTimeout)
	defer c.timer.Stop()
	defer c.stop()
	if closeWrite(c.Conn) == nil {
		_, _ = io.Copy(io.Discard, c.Conn) // late data of the client is dropped
	}
	return c.hang()
}

// closeWrite closes the direction to the other end.
func closeWrite(conn net.Conn) error {
	switch c := conn.(type) {
	case *tls.Conn:
		if err := c.CloseWrite(); err != nil {
			return err
		}
		return closeWrite(c.NetConn()) // the client may wait for the end of the underlying connection
	case interface{ CloseWrite() error }:
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}
