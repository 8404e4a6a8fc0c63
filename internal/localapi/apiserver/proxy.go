package apiserver

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"time"
)

// newProxy returns a proxy to a child. done is closed when the child has exited, and why then
// returns the cause.
func newProxy(transport http.RoundTripper, done <-chan struct{}, why func() error) http.Handler {
	return &httputil.ReverseProxy{
		Transport: transport,
		// Stream watches and lists.
		FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", "apiserver"
			who, _ := identityOf(p.In.Context()) // ServeHTTP has checked it
			identify(p.Out.Header, who)
		},
		ErrorHandler: func(w http.ResponseWriter, q *http.Request, err error) {
			refuseUnavailable(w, reasonOf(q.Context(), done, why, err))
		},
		// It logs only aborted responses, which the client detects.
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
}

// reasonOf returns why a request failed. Usually the child has exited, which becomes known shortly
// after its connections are closed.
func reasonOf(ctx context.Context, done <-chan struct{}, why func() error, err error) error {
	timer := time.NewTimer(deathTime)
	defer timer.Stop()
	select {
	case <-done:
		return why()
	case <-ctx.Done():
	case <-timer.C:
	}
	return err
}
