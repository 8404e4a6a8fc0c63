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
)

// listener is one socket or port and what is served there. Each has limits of its own, so that a
// crowd at one does not close another.
type listener struct {
	name     string
	listen   func() (net.Listener, error)
	tls      *tls.Config // nil: plain HTTP
	limits   limits
	requests *semaphore.Weighted // at a time
	handler  http.Handler
	log      *slog.Logger
}

// serve sets what the listener serves, within its limits.
func (l *listener) serve(h http.Handler) { l.handler = limiter{l.requests, h} }

// run serves until ctx is done.
func (l *listener) run(ctx context.Context) error {
	bound, err := l.listen()
	if err != nil {
		return fmt.Errorf("%s: %w", l.name, err)
	}
	errorLevel := slog.LevelWarn
	if l.tls != nil {
		errorLevel = slog.LevelDebug // whoever can reach the port can break off handshakes
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
		ConnContext:       withConn,
		Protocols:         computeProtocols(l.tls),
		// A request for no path is one like others: counted, and authenticated.
		DisableGeneralOptionsHandler: true,
	}
	bound = boundedListener{bound, newConnections(l.name, l.limits, l.log)}
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

// computeProtocols returns what a listener speaks. HTTP/2 has a cipher suite that it needs (RFC
// 9113, section 9.2.2), and a configuration may leave that out.
func computeProtocols(c *tls.Config) *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	if c != nil {
		own := func(id uint16) bool {
			return id == tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 || id == tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
		}
		p.SetHTTP2(c.CipherSuites == nil || c.MinVersion >= tls.VersionTLS13 || slices.ContainsFunc(c.CipherSuites, own))
	}
	return &p
}

// end closes the listener and every connection and waits for the handlers.
func (l *listener) end(hs *http.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := hs.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		// A client that does not read its answer must not keep the agent from ending.
		err = hs.Close()
	}
	// All have left when the whole capacity is free; none comes any more.
	if err := l.requests.Acquire(context.Background(), int64(l.limits.requests)); err != nil {
		return fmt.Errorf("%s: close: %w", l.name, err)
	}
	if err != nil {
		return fmt.Errorf("%s: close: %w", l.name, err)
	}
	return nil
}
