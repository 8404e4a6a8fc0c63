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

// lingerTimeout bounds how long the end of a stream waits for the client to have everything and to
// end its side too.
const lingerTimeout = 30 * time.Second

// upgradingWriter answers a request whose connection becomes a stream, and keeps that connection as
// a clientConn.
type upgradingWriter struct {
	http.ResponseWriter
	ctx  context.Context // of the request: the connection ends with it
	idle time.Duration
	conn *clientConn // nil until it is taken over
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

// close ends the connection if there is one, and waits for it.
func (w *upgradingWriter) close() {
	if w.conn != nil {
		_ = w.conn.Close() // how the client left does not matter any more
	}
}

// farewellTimeout is how long a stream that ends with its request has for its last word.
const farewellTimeout = time.Second

// clientConn is the upgraded connection of a client. It ends with its context, or when nothing goes
// through it for a while.
//
// Close lets the client read to the end first: a socket that is closed while there is something to
// read from it, or gets something afterwards (a ping, input that nobody wants any more), is reset
// by the kernel, and what was written to it and is still on its way is lost (RFC 9112, section
// 9.6).
type clientConn struct {
	net.Conn
	in      *bufio.Reader // has what came with the request
	idle    time.Duration
	timer   *time.Timer
	stop    func() bool
	hang    func() error // closes the connection as it is
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

// Close ends the connection and returns when the client has ended it too, or has not for
// lingerTimeout.
func (c *clientConn) Close() error { return c.closing() }

func (c *clientConn) linger() error {
	c.closed.Store(true)
	c.timer.Reset(lingerTimeout)
	defer c.timer.Stop()
	defer c.stop()
	if closeWrite(c.Conn) == nil {
		_, _ = io.Copy(io.Discard, c.Conn) // whatever the client had to say, it said it too late
	}
	return c.hang()
}

// closeWrite ends the direction to the other end.
func closeWrite(conn net.Conn) error {
	switch c := conn.(type) {
	case *tls.Conn:
		if err := c.CloseWrite(); err != nil {
			return err
		}
		return closeWrite(c.NetConn()) // the client's program may wait for the end of the connection below
	case interface{ CloseWrite() error }:
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}
