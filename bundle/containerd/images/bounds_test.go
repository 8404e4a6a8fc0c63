package images

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// bounded makes each request in time.
type bounded struct{ next http.RoundTripper }

func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	return b.next.RoundTrip(inTime(req))
}

// piped is a listener of connections in memory, which count as idle in a bubble.
type piped struct {
	conns chan net.Conn
	done  chan struct{}
	close func() // closes done, once
}

func (p piped) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p piped) Close() error   { p.close(); return nil }
func (p piped) Addr() net.Addr { return &net.TCPAddr{} }

// dial ends as a pipe does.
func (p piped) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	p.conns <- theirs
	return ours, nil
}

// A registry has a minute for a manifest and a token, head and body, and as long as it likes for a
// blob, wherever that is kept.
func TestInTime(t *testing.T) {
	trickle := func(w http.ResponseWriter, req *http.Request) {
		for range 90 {
			if _, err := io.WriteString(w, "x"); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			time.Sleep(time.Second)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/v2/a/manifests/slow", trickle)
	mux.HandleFunc("/v2/a/manifests/silent", func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
	mux.HandleFunc("/v2/a/manifests/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/slow", http.StatusFound) })
	mux.HandleFunc("/v2/a/manifests/quick", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("x", 90)) })
	mux.HandleFunc("/v2/a/blobs/slow", trickle)
	mux.HandleFunc("/v2/a/blobs/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/slow", http.StatusFound) })
	mux.HandleFunc("/token", trickle)
	mux.HandleFunc("/slow", trickle)
	for path, late := range map[string]bool{
		"/v2/a/manifests/slow": true, "/v2/a/manifests/silent": true, "/v2/a/manifests/moved": true, "/v2/a/manifests/quick": false,
		"/v2/a/blobs/slow": false, "/v2/a/blobs/moved": false, "/token": true,
	} {
		t.Run(path[1:], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				done := make(chan struct{})
				l := piped{conns: make(chan net.Conn), done: done, close: sync.OnceFunc(func() { close(done) })}
				server := &http.Server{Handler: mux}
				go func() { _ = server.Serve(l) }() // ends with an error when it is closed
				defer server.Close()
				transport := &http.Transport{DialContext: l.dial}
				defer transport.CloseIdleConnections()
				var body []byte
				began := time.Now()
				resp, err := (&http.Client{Transport: bounded{transport}}).Get("http://registry" + path)
				if err == nil {
					body, err = io.ReadAll(resp.Body)
					_ = resp.Body.Close()
				}
				switch took := time.Since(began); {
				case late && (!errors.Is(err, errNoAnswer) || took != time.Minute):
					t.Errorf("got %d bytes, %v after %v; want an end after a minute", len(body), err, took)
				case !late && (err != nil || len(body) != 90):
					t.Errorf("got %d bytes, %v; want 90", len(body), err)
				}
				time.Sleep(2 * time.Minute) // what is still sent, and the times given
			})
		})
	}
}

// A byte a second is no progress in the five minutes that containerd waits for some; a kilobyte a
// second is.
func TestProgressed(t *testing.T) {
	for perSecond, want := range map[uint64]bool{0: false, 1: false, 200: false, 1 << 10: true} {
		if got := progressed(1<<20+300*perSecond, 1<<20); got != want {
			t.Errorf("%d bytes a second: progressed is %v", perSecond, got)
		}
	}
}
