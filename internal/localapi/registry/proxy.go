package registry

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"time"
)

// newProxy passes requests on to a child. done is closed when the child is gone, and why says then
// what ended it.
func newProxy(transport http.RoundTripper, done <-chan struct{}, why func() error) http.Handler {
	return &httputil.ReverseProxy{
		Transport: transport,
		// Watches and the answers to many objects come in parts.
		FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", "registry"
			who, _ := identityOf(p.In.Context()) // checked before
			identify(p.Out.Header, who)
		},
		ErrorHandler: func(w http.ResponseWriter, q *http.Request, err error) {
			refuseUnavailable(w, reasonOf(q.Context(), done, why, err))
		},
		// What it says is of answers that broke off, and the client sees that.
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
}

// reasonOf is why a request was not answered: mostly the end of the child, which is known a moment
// after the end of its connections.
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
