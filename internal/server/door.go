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
	"time"

	"k8s.io/streaming/pkg/httpstream"

	"berth/internal/logs"
)

// The limits of every door. They are generous for people and small for a process that should not grow: a request costs a goroutine
// and two buffers.
const (
	maxBodyBytes  = 64 << 10
	headerTimeout = 10 * time.Second
	answerTimeout = 30 * time.Second // not for streams, which last as long as the client wants
	idleTimeout   = 90 * time.Second
	stopTimeout   = 2 * time.Second // for answers under way when the agent stops
)

// limits are those that differ from door to door.
type limits struct {
	requests    int // at a time, streams included
	streams     int // watches, logs and entered containers at a time
	headerBytes int
	// Open connections. Those that nobody was let in by yet have a share of their own.
	known, strangers int
}

var (
	localLimits = limits{requests: 64, streams: 32, headerBytes: 16 << 10, known: 64, strangers: 64}
	// Everybody on the cluster who reads a log or enters a container comes by here; tokens can be long.
	secureLimits = limits{requests: 512, streams: 256, headerBytes: 64 << 10, known: 1024, strangers: 1024}
	// Whom nobody asks for a name, nobody knows.
	readOnlyLimits = limits{requests: 32, headerBytes: 16 << 10, strangers: 128}
)

// manyFiles is how many open files leave the agent more than enough beside all that clients can have open. minConnections are what a door has
// with however few.
const (
	manyFiles      = 8192
	minConnections = 8
)

// computeShare returns how much of n, which is for manyFiles, there may be when the process may have so many files open (0: enough): most of
// them are for the agent's own work.
func computeShare(n int, files uint64) int {
	if n == 0 || files == 0 || files >= manyFiles {
		return n
	}
	return max(n*int(files)/manyFiles, minConnections)
}

// door is one listener and what is served there. Each has limits of its own, so that a crowd at one does not close another.
type door struct {
	name      string
	h         Handlers
	listen    func() (net.Listener, error)
	tls       *tls.Config // nil: plain HTTP
	handler   http.Handler
	streaming *runtimeStreams // nil unless the handlers have streams
	watches   *logs.Watches   // of all doors; nil: logs are followed by the clock
	lists     *podLists       // of all doors
	log       *slog.Logger
	limits    limits
	scrapes   map[string]http.Handler
	metrics   *metrics // of all doors
	requests  gate
	streams   gate
}

// run serves until ctx is done.
func (d *door) run(ctx context.Context) error {
	l, err := d.listen()
	if err != nil {
		return fmt.Errorf("%s: %w", d.name, err)
	}
	errorLevel := slog.LevelWarn
	if d.tls != nil {
		errorLevel = slog.LevelDebug // whoever can reach the port can break off handshakes
	}
	hs := &http.Server{
		Handler:           d.handler,
		TLSConfig:         d.tls,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       answerTimeout,
		WriteTimeout:      answerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    d.limits.headerBytes,
		ErrorLog:          slog.NewLogLogger(d.log.Handler(), errorLevel),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       withConn,
		Protocols:         computeProtocols(d.tls),
		// A request for no path is one like others: counted, and authenticated.
		DisableGeneralOptionsHandler: true,
	}
	l = boundedListener{l, newConnections(d.name, d.limits, d.log)}
	served := make(chan error, 1)
	go func() {
		if d.tls != nil {
			served <- hs.ServeTLS(l, "", "")
			return
		}
		served <- hs.Serve(l)
	}()
	select {
	case err := <-served:
		err = fmt.Errorf("%s: serve: %w", d.name, err)
		return errors.Join(err, d.end(hs))
	case <-ctx.Done():
	}
	err = d.end(hs)
	<-served
	return err
}

// computeProtocols returns what is spoken at a door. HTTP/2 has a cipher suite that it needs (RFC 9113, section 9.2.2), and a configuration may
// leave that out.
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
func (d *door) end(hs *http.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := hs.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		// A client that does not read its answer must not keep the agent from ending.
		err = hs.Close()
	}
	d.requests.close()
	if err != nil {
		return fmt.Errorf("%s: close: %w", d.name, err)
	}
	return nil
}

// limit bounds how many requests are served at a time and how much one may send. A request to upgrade the connection is the last one on it,
// whether it becomes a stream or is refused: who passed it on may take what comes after it for a stream's (CVE-2018-1002105).
func (d *door) limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(httpstream.HeaderUpgrade) != "" {
			w.Header().Set(httpstream.HeaderConnection, "close")
		}
		if !d.requests.enter() {
			refuseBusy(w, "too many requests at a time")
			return
		}
		defer d.requests.leave()
		r.Body = http.MaxBytesReader(w, r.Body, maxBodyBytes)
		next.ServeHTTP(w, r)
	})
}

// admit makes the connections of requests that get as far as next known.
func admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		letIn(r.Context())
		next.ServeHTTP(w, r)
	})
}

// stream runs f as an answer of unlimited length, or refuses it when there are too many.
func (d *door) stream(w http.ResponseWriter, f func() error) error {
	if !d.streams.enter() {
		refuseBusy(w, "too many streams at a time")
		return nil
	}
	defer d.streams.leave()
	// Reading too: the server reads on during an answer, to learn that the client is gone.
	c := http.NewResponseController(w)
	err := errors.Join(c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Time{}))
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("lift the time limit of the answer: %w", err)
	}
	return f()
}

func refuseBusy(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, why, http.StatusTooManyRequests)
}

// gate lets as many in as it has capacity. Whoever does not get in is told so instead of waiting.
type gate chan struct{}

func (g gate) enter() bool {
	select {
	case g <- struct{}{}:
		return true
	default:
		return false
	}
}

func (g gate) leave() { <-g }

// close waits until everybody has left and lets nobody in any more.
func (g gate) close() {
	for range cap(g) {
		g <- struct{}{}
	}
}
