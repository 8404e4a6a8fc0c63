package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"

	"golang.org/x/sync/semaphore"

	"berth/internal/connlimit"
)

// listener is one socket or port and its handler. Each has its own limits, so that load on one does
// not affect another.
type listener struct {
	name     string
	listen   func() (net.Listener, error)
	tls      *tls.Config // nil: plain HTTP
	limits   limits
	requests *semaphore.Weighted // concurrent
	handler  http.Handler
	log      *slog.Logger
}

// serve sets the handler, within the listener's limits.
func (l *listener) serve(h http.Handler) { l.handler = limiter{l.requests, h} }

func (l *listener) run(ctx context.Context) error {
	bound, err := l.listen()
	if err != nil {
		return fmt.Errorf("%s: %w", l.name, err)
	}
	errorLevel := slog.LevelWarn
	if l.tls != nil {
		errorLevel = slog.LevelDebug // any client of the port can abort handshakes
	}
	hs := &http.Server{
		Handler:           l.handler,
		TLSConfig:         l.tls,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       answerTimeout,
		WriteTimeout:      answerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    l.limits.headerBytes,
		ErrorLog:          slog.NewLogLogger(l.log.Handler(), errorLevel),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       connlimit.ConnContext,
		Protocols:         computeProtocols(l.tls),
		// "OPTIONS *" is handled like other requests: counted and authenticated.
		DisableGeneralOptionsHandler: true,
	}
	bound = connlimit.Listen(bound, connlimit.Config{
		Unadmitted: l.limits.unadmitted, Admitted: l.limits.admitted,
		Origin: func(c net.Conn) any { return connlimit.Origin(c.RemoteAddr().String()) },
		Warn: func(closed int, origin any) {
			l.log.Warn(l.name+": too many unauthenticated connections are open, closing some",
				"limit", l.limits.unadmitted, "closed", closed, "from", origin)
		},
	})
	served := make(chan error, 1)
	go func() {
		if l.tls != nil {
			served <- hs.ServeTLS(bound, "", "")
			return
		}
		served <- hs.Serve(bound)
	}()
	select {
	case err := <-served:
		err = fmt.Errorf("%s: serve: %w", l.name, err)
		return errors.Join(err, l.end(hs))
	case <-ctx.Done():
	}
	err = l.end(hs)
	<-served
	return err
}

// computeProtocols returns the protocols of a listener. HTTP/2 requires a cipher suite (RFC 9113,
// section 9.2.2) that a configuration may exclude.
func computeProtocols(c *tls.Config) *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	if c != nil {
		required := func(id uint16) bool {
			return id == tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 || id == tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
		}
		p.SetHTTP2(c.CipherSuites == nil || c.MinVersion >= tls.VersionTLS13 || slices.ContainsFunc(c.CipherSuites, required))
	}
	return &p
}

// end closes the listener and every connection and waits for the handlers.
func (l *listener) end(hs *http.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := hs.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		// A client that does not read its response must not block the agent's exit.
		err = hs.Close()
	}
	// All handlers have returned when the full capacity is free; no new ones start.
	if err := l.requests.Acquire(context.Background(), int64(l.limits.requests)); err != nil {
		return fmt.Errorf("%s: close: %w", l.name, err)
	}
	if err != nil {
		return fmt.Errorf("%s: close: %w", l.name, err)
	}
	return nil
}
