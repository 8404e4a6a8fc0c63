package auth_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth/internal/localapi/auth"
)

// pipes are connections in memory, whose time may be virtual.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (*pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	p.conns <- there
	return here, nil
}

// door is an API over connections in memory.
type door struct {
	*testing.T
	*pipes
	authority *auth.Authority
	tokens    *auth.Tokens
	access    *auth.Access
	objects   *objects
	rules     string
	dialed    int
	leave     chan struct{}
}

// inMemory runs a test of an API whose listener is made by bound.
func inMemory(t *testing.T, bound func(net.Listener) net.Listener, test func(*door)) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		authority, err := auth.OpenAuthority(filepath.Join(dir, "api"))
		if err != nil {
			t.Fatal(err)
		}
		d := &door{
			T: t, pipes: &pipes{conns: make(chan net.Conn), closed: make(chan struct{})},
			authority: authority, objects: &objects{}, rules: filepath.Join(dir, "access.yaml"), leave: make(chan struct{}),
		}
		if d.tokens, err = auth.OpenTokens(auth.TokensConfig{Dir: filepath.Join(dir, "api"), Objects: d.objects}); err != nil {
			t.Fatal(err)
		}
		log := slog.New(slog.DiscardHandler)
		d.access = auth.New(auth.Config{Authority: authority, Tokens: d.tokens, Rules: auth.NewRulesFile(d.rules, log), Objects: d.objects, Log: log})
		h := &http.Server{
			Handler:     d.access.Handler(http.HandlerFunc(d.serve)),
			ConnContext: auth.ConnContext, TLSConfig: authority.TLS(), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
		}
		auth.Bound(h)
		ended := make(chan error)
		go func() { ended <- h.ServeTLS(bound(d.pipes), "", "") }()
		test(d)
		if err := errors.Join(h.Close(), d.pipes.Close()); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}

// serve is what is behind the door: logs that are followed last until leave is closed, and exec
// says what it is told.
func (d *door) serve(w http.ResponseWriter, r *http.Request) {
	c := http.NewResponseController(w)
	switch {
	case strings.HasSuffix(r.URL.Path, "/exec"):
		conn, rw, err := c.Hijack()
		if err != nil {
			d.Error(err)
			return
		}
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		_, _ = io.Copy(conn, rw)
		_ = conn.Close()
	case r.URL.Query().Get("follow") != "":
		w.WriteHeader(http.StatusOK)
		_ = c.Flush()
		select {
		case <-d.leave:
		case <-r.Context().Done():
		}
	}
}

// client is one that may everything, and opens connections by dial.
func (d *door) client(user string, dial func(context.Context, string, string) (net.Conn, error)) *http.Client {
	d.Helper()
	transport := &http.Transport{DialContext: dial, TLSClientConfig: d.secured(user, []string{"system:masters"}), ForceAttemptHTTP2: true}
	d.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// secured has the certificate of a user.
func (d *door) secured(user string, groups []string) *tls.Config {
	d.Helper()
	content, err := auth.Kubeconfig(d.authority, d.rules, auth.Grant{
		Rule: auth.Rule{Users: []string{user}, Groups: groups}, Life: time.Hour, Server: "https://localhost",
	})
	if err != nil {
		d.Fatal(err)
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig(content)
	if err != nil {
		d.Fatal(err)
	}
	secured, err := rest.TLSConfigFor(cfg)
	if err != nil {
		d.Fatal(err)
	}
	secured.ServerName = "localhost"
	return secured
}

// bearer is a client that shows a token.
func (d *door) bearer(token string) *http.Client {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		d.dialed++
		return d.dial(ctx, network, address)
	}
	transport := &http.Transport{DialContext: dial, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // it is the server that is tested
	d.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: withToken{transport, token}}
}

// withToken adds a token to requests.
type withToken struct {
	http.RoundTripper
	token string
}

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+w.token)
	return w.RoundTripper.RoundTrip(r)
}

func (d *door) setRules(rules string) {
	d.Helper()
	if err := os.WriteFile(d.rules, []byte(rules), 0o600); err != nil {
		d.Fatal(err)
	}
}

// get is the code that a path is answered with, 0 if it is not, and what closes the answer.
func (d *door) get(c *http.Client, path string) (code int, end func()) {
	r, err := http.NewRequestWithContext(d.Context(), http.MethodGet, "https://localhost"+path, http.NoBody)
	if err != nil {
		d.Fatal(err)
	}
	response, err := c.Do(r)
	if err != nil {
		return 0, func() {}
	}
	return response.StatusCode, func() {
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
}

// closes reports how long it takes until the server closes a connection.
func (d *door) closes(c net.Conn) time.Duration {
	start := time.Now()
	_, _ = io.Copy(io.Discard, c)
	return time.Since(start)
}

func (d *door) must(c net.Conn, err error) net.Conn {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
	return c
}

// unheard opens connections whose clients are silent: some say nothing, some shake hands, some
// begin a request.
func (d *door) unheard(n int) []net.Conn {
	d.Helper()
	var all []net.Conn
	for i := range n {
		c := d.must(d.dial(d.Context(), "", ""))
		if i%3 > 0 {
			c = tls.Client(c, &tls.Config{InsecureSkipVerify: true}) // it is the server that is tested
		}
		if i%3 > 1 {
			if _, err := fmt.Fprint(c, "GET /api/v1/pods HT"); err != nil {
				d.Fatal(err)
			}
		}
		all = append(all, c)
		time.Sleep(time.Millisecond) // of virtual time, so that one is older than the next
	}
	return all
}

// TestSilentClients opens more connections than there may be, and says nothing by them. Others are
// served, and the first of the silent goes.
func TestSilentClients(t *testing.T) {
	inMemory(t, auth.Bounded, func(d *door) {
		dialed := 0
		c := d.client("ann", func(ctx context.Context, network, address string) (net.Conn, error) {
			dialed++
			return d.dial(ctx, network, address)
		})
		ask := func() {
			t.Helper()
			if code, end := d.get(c, "/version"); code != http.StatusOK {
				t.Errorf("a client is answered %d", code)
			} else {
				end()
			}
		}
		ask()
		silent := d.unheard(256)
		ask()
		synctest.Wait()
		if dialed != 1 {
			t.Errorf("a client that is known had to connect %d times", dialed)
		}
		more := d.unheard(2)
		for i, c := range silent[:2] {
			if after := d.closes(c); after != 0 {
				t.Errorf("silent connection %d is closed %v after one too many", i, after)
			}
		}
		if c := d.client("joe", d.dial); c != nil {
			if code, end := d.get(c, "/version"); code != http.StatusOK {
				t.Errorf("a new client is answered %d", code)
			} else {
				end()
			}
		}
		for i, c := range append(more, silent[3:]...) {
			if after := d.closes(c); after > 10*time.Second || i == 0 && after < 9*time.Second {
				t.Errorf("silent connection %d is closed after %v", i, after)
			}
		}
	})
}

// TestFullOfRequests has more connections than there may be, each with a request under way.
func TestFullOfRequests(t *testing.T) {
	bound := func(l net.Listener) net.Listener { return auth.BoundedTo(l, 3, 2) }
	inMemory(t, bound, func(d *door) {
		const follow = "/api/v1/namespaces/x/pods/p/log?follow=1"
		var ends []func()
		for i := range 3 {
			code, end := d.get(d.client(fmt.Sprint("u", i), d.dial), follow)
			if code != http.StatusOK {
				t.Fatalf("client %d is answered %d", i, code)
			}
			ends = append(ends, end)
		}
		if code, _ := d.get(d.client("late", d.dial), "/version"); code != 0 {
			t.Errorf("one too many is answered %d", code)
		}
		close(d.leave)
		for _, end := range ends {
			end()
		}
		synctest.Wait()
		if code, end := d.get(d.client("later", d.dial), "/version"); code != http.StatusOK {
			t.Errorf("afterwards a client is answered %d", code)
		} else {
			end()
		}
	})
}
