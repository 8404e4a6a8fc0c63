package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// The limits of the API. They are generous for people and small for a process that should not grow: a request costs a goroutine
// and two buffers.
const (
	maxHeaderBytes = 16 << 10
	maxBodyBytes   = 64 << 10
	maxRequests    = 64 // at a time, streams included
	maxStreams     = 32 // watches and logs at a time
	headerTimeout  = 10 * time.Second
	answerTimeout  = 30 * time.Second // not for streams, which last as long as the client wants
	idleTimeout    = 90 * time.Second
	stopTimeout    = 2 * time.Second // for answers under way when the agent stops
)

// Config is what a Server needs.
type Config struct {
	Handlers Handlers
	// Listen opens the listener when Run begins; Listen(runDir) of this package is the one for a real socket.
	Listen func() (net.Listener, error)
	Log    *slog.Logger
}

// Server serves the API.
type Server struct {
	h        Handlers
	listen   func() (net.Listener, error)
	log      *slog.Logger
	requests gate
	streams  gate
}

// New returns a server that does not listen yet.
func New(cfg Config) (*Server, error) {
	h := cfg.Handlers
	if h.Pods == nil || h.Pod == nil || h.Subscribe == nil || h.ContainerLog == nil || h.Problems == nil || h.Journal == nil ||
		h.Version == nil || h.Stop == nil || h.Healthz == nil {
		return nil, errors.New("local API: every handler is needed")
	}
	if cfg.Listen == nil || cfg.Log == nil {
		return nil, errors.New("local API: a listener and a logger are needed")
	}
	return &Server{
		h:        h,
		listen:   cfg.Listen,
		log:      cfg.Log,
		requests: make(gate, maxRequests),
		streams:  make(gate, maxStreams),
	}, nil
}

// Run listens and serves until ctx is done; then streams end at once and other answers get two seconds. It can be called once.
func (s *Server) Run(ctx context.Context) error {
	l, err := s.listen()
	if err != nil {
		return fmt.Errorf("local API: %w", err)
	}
	hs := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: headerTimeout,
		WriteTimeout:      answerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	served := make(chan error, 1)
	go func() { served <- hs.Serve(l) }()
	select {
	case err := <-served:
		err = fmt.Errorf("local API: serve: %w", err)
		return errors.Join(err, s.end(hs))
	case <-ctx.Done():
	}
	err = s.end(hs)
	<-served
	return err
}

// end closes the listener and every connection and waits for the handlers.
func (s *Server) end(hs *http.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := hs.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		// A client that does not read its answer must not keep the agent from ending.
		err = hs.Close()
	}
	s.requests.close()
	if err != nil {
		return fmt.Errorf("local API: close: %w", err)
	}
	return nil
}

// Handler returns the API without a listener.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+PathHealthz, s.getHealthz)
	mux.HandleFunc("GET "+PathPods, s.getPods)
	mux.HandleFunc("GET "+PathContainerLogs+"/{namespace}/{pod}/{container}", s.getContainerLogs)
	mux.HandleFunc("GET "+PathVersion, s.getVersion)
	mux.HandleFunc("GET "+PathProblems, s.getProblems)
	mux.HandleFunc("GET "+PathJournal, s.getSubjects)
	mux.HandleFunc("GET "+PathJournal+"/{namespace}/{pod}", s.getJournal)
	mux.HandleFunc("POST "+PathStop, s.postStop)
	return s.limit(mux)
}

// limit bounds how many requests are served at a time and how much one may send.
func (s *Server) limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.requests.enter() {
			refuseBusy(w, "too many requests at a time")
			return
		}
		defer s.requests.leave()
		r.Body = http.MaxBytesReader(w, r.Body, maxBodyBytes)
		next.ServeHTTP(w, r)
	})
}

// stream runs f as an answer of unlimited length, or refuses it when there are too many.
func (s *Server) stream(w http.ResponseWriter, f func() error) error {
	if !s.streams.enter() {
		refuseBusy(w, "too many watches and logs at a time")
		return nil
	}
	defer s.streams.leave()
	if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
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
