package streams

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// idleTransport closes idle upgraded connections.
type idleTransport struct {
	next http.RoundTripper
	idle time.Duration
}

// RoundTrip implements http.RoundTripper.
func (t idleTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		return resp, err
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		return nil, errors.Join(errors.New("the connection was upgraded and cannot be written to"), resp.Body.Close())
	}
	resp.Body = newIdleConn(r.Context(), conn, t.idle)
	return resp, nil
}

// idleConn is closed after an idle timeout, or when its context is done.
type idleConn struct {
	io.ReadWriteCloser
	idle    time.Duration
	timer   *time.Timer
	stop    func() bool
	closing func() error
	closed  atomic.Bool
}

func newIdleConn(ctx context.Context, conn io.ReadWriteCloser, idle time.Duration) *idleConn {
	c := &idleConn{ReadWriteCloser: conn, idle: idle, closing: sync.OnceValue(conn.Close)}
	c.timer = time.AfterFunc(idle, func() { _ = c.closing() })
	c.stop = context.AfterFunc(ctx, func() { _ = c.closing() })
	return c
}

func (c *idleConn) Read(b []byte) (int, error) {
	n, err := c.ReadWriteCloser.Read(b)
	c.used(n)
	return n, err
}

func (c *idleConn) Write(b []byte) (int, error) {
	n, err := c.ReadWriteCloser.Write(b)
	c.used(n)
	return n, err
}

func (c *idleConn) used(n int) {
	if n > 0 {
		c.timer.Reset(c.idle)
	}
	if c.closed.Load() { // closed meanwhile: a running timer would retain the connection
		c.timer.Stop()
	}
}

func (c *idleConn) Close() error {
	c.closed.Store(true)
	c.timer.Stop()
	c.stop()
	return c.closing()
}
