package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// join connects the client with the runtime's streaming server, where begin has the runtime wait for it. Whatever the client speaks,
// SPDY or WebSocket, the runtime hears SPDY.
func (d *door) join(w http.ResponseWriter, r *http.Request, wanted streamOptions, begin func(context.Context) (runtimeURL string, err error)) {
	if !httpstream.IsUpgradeRequest(r) {
		http.Error(w, "Upgrade request required", http.StatusBadRequest)
		return
	}
	runtimeURL, err := begin(r.Context())
	if err != nil {
		refuseRuntime(w, err)
		return
	}
	target, err := url.Parse(runtimeURL)
	if err != nil || target.Host == "" {
		http.Error(w, fmt.Sprintf("the container runtime waits for the stream at %q, which is no URL", runtimeURL), http.StatusInternalServerError)
		return
	}
	d.ended(r, d.stream(w, func() error {
		switch {
		case !wsstream.IsWebSocketRequest(r), wanted.ports && wsstream.IsWebSocketRequestWithTunnelingProtocol(r):
			return d.streaming.relay(w, r, target)
		case wanted.ports:
			d.streaming.pass(w, r, target, d.log)
			return nil
		default:
			return d.streaming.translate(w, r, target, wanted)
		}
	}))
}

// pass lets the client speak with the runtime itself: of ports, in the old WebSocket protocol.
func (s *runtimeStreams) pass(w http.ResponseWriter, r *http.Request, target *url.URL, log *slog.Logger) {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL, pr.Out.Host = target, target.Host
			pr.Out.Header.Del("Authorization") // it is for us
		},
		Transport: idleTransport{s.transport, s.idle},
		ModifyResponse: func(resp *http.Response) error {
			if resp.StatusCode == http.StatusSwitchingProtocols {
				w.Header().Del(httpstream.HeaderConnection) // the runtime's is the one
			}
			return nil
		},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, fmt.Sprintf("streaming server of the container runtime: %v", err), http.StatusBadGateway)
		},
	}
	client := &upgradingWriter{ResponseWriter: w, ctx: r.Context(), idle: s.idle}
	defer client.close()
	proxy.ServeHTTP(client, r)
}

// refusal is an answer of the runtime's streaming server that is not the beginning of a stream.
type refusal struct {
	status  int
	message string
}

func (e *refusal) Error() string {
	return fmt.Sprintf("streaming server of the container runtime: %d %s", e.status, e.message)
}

// dial opens a SPDY connection to the runtime with one of the subprotocols, and returns which. It ends with ctx.
func (s *runtimeStreams) dial(ctx context.Context, target *url.URL, protocols ...string) (io.ReadWriteCloser, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), nil)
	if err != nil {
		return nil, "", err
	}
	req.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	req.Header.Set(httpstream.HeaderUpgrade, "SPDY/3.1")
	for _, p := range protocols {
		req.Header.Add(httpstream.HeaderProtocolVersion, p)
	}
	resp, err := idleTransport{s.transport, s.idle}.RoundTrip(req)
	if err != nil {
		return nil, "", &refusal{http.StatusBadGateway, err.Error()}
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return resp.Body.(io.ReadWriteCloser), resp.Header.Get(httpstream.HeaderProtocolVersion), nil // by the documentation of http.Response
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBodyBytes))
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return nil, "", &refusal{http.StatusBadGateway, err.Error()}
	}
	return nil, "", &refusal{resp.StatusCode, string(text)}
}

// idleTransport ends upgraded connections that nothing goes through.
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

// idleConn is closed when nothing was read or written for a while, or when its context is done.
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
	if c.closed.Load() { // meanwhile: a timer that runs would keep the connection in memory
		c.timer.Stop()
	}
}

func (c *idleConn) Close() error {
	c.closed.Store(true)
	c.timer.Stop()
	c.stop()
	return c.closing()
}
