package server

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/sync/semaphore"
)

// Each listener serves so many requests at a time, and refuses the next without letting it wait.
func TestTooManyRequests(t *testing.T) {
	entered, leave := make(chan bool), make(chan bool)
	h := limiter{semaphore.NewWeighted(2), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/logs" {
			entered <- true
			<-leave
		}
	})}
	ended := make(chan bool)
	for range 2 {
		go func() {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/logs", nil))
			ended <- true
		}()
		<-entered
	}
	w := get(h, "/pods")
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" || w.Body.String() != "too many requests at a time\n" {
		t.Errorf("the third: %d %q", w.Code, w.Body)
	}
	leave <- true
	<-ended
	if w := get(h, "/pods"); w.Code != http.StatusOK {
		t.Errorf("after one has left: %d %q", w.Code, w.Body)
	}
	leave <- true
	<-ended
}

// A body is read up to its limit, whatever handler reads it.
func TestLargeBody(t *testing.T) {
	var read int
	var err error
	h := limiter{semaphore.NewWeighted(1), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var b []byte
		b, err = io.ReadAll(r.Body)
		read = len(b)
	})}
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", maxBodyBytes+1))))
	if read > maxBodyBytes || err == nil {
		t.Errorf("%d bytes were read: %v", read, err)
	}
}

// Headers that are too large are refused before anything reads them.
func TestLargeHeader(t *testing.T) {
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	served := &listener{
		name: "test", listen: func() (net.Listener, error) { return l, nil }, limits: localLimits, log: slog.New(slog.DiscardHandler),
		requests: semaphore.NewWeighted(int64(localLimits.requests)),
		handler:  http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request with a large header is served") }),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- served.run(ctx) }()
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", l.Addr().String()) }}
	req := httptest.NewRequest(http.MethodGet, "http://node/pods", nil)
	req.Header.Set("X-Large", strings.Repeat("x", 2*localLimits.headerBytes))
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("got %s", resp.Status)
	}
	transport.CloseIdleConnections()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
