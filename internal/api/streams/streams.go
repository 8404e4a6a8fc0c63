// Package streams connects clients of exec, attach and port-forward with the container runtime or
// with ports of a pod.
//
//	SPDY, or SPDY in a WebSocket ──► relay ──────► the runtime's streaming server, in SPDY
//	WebSocket of a command ────────► translate ──► the runtime's streaming server, in SPDY
//	WebSocket of ports ────────────► pass ───────► the runtime's streaming server, unchanged
//	port-forward ──────────────────► Forward ────► ports in the pod's network namespace
//
// Owns: the protocols between a client and the runtime's streaming server, and the closing of
// upgraded connections.
// Reads: what either side sends.
// Never: authorizes a stream, or selects its container.
package streams

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

const (
	// answerTimeout bounds the runtime's response to a stream request.
	answerTimeout = 30 * time.Second
	// maxAnswerBytes bounds an error response of the runtime, and the result of a command.
	maxAnswerBytes = 64 << 10
)

// Config is the configuration of a Joiner.
type Config struct {
	// Transport connects to the runtime's streaming server; nil: over the network.
	Transport http.RoundTripper
	// IdleTimeout closes a stream after this time without data; 0: four hours.
	IdleTimeout time.Duration
	// MaxForwarded bounds concurrent connections to pod ports, over all clients.
	MaxForwarded int
	Log          *slog.Logger
}

// Joiner connects clients to the runtime's streaming server and to ports of pods.
type Joiner struct {
	transport http.RoundTripper
	idle      time.Duration
	forwarded *semaphore.Weighted
	log       *slog.Logger
}

// New returns a Joiner.
func New(cfg Config) *Joiner {
	s := &Joiner{
		transport: cfg.Transport, idle: cmp.Or(cfg.IdleTimeout, 4*time.Hour),
		forwarded: semaphore.NewWeighted(int64(cfg.MaxForwarded)), log: cfg.Log,
	}
	if s.transport == nil {
		// No proxy from the environment: the runtime is on this machine. A URL is valid for one
		// connection.
		s.transport = &http.Transport{
			DisableKeepAlives: true, DisableCompression: true, ResponseHeaderTimeout: answerTimeout,
		}
	}
	return s
}

// Options are the streams that the client requests.
type Options struct {
	Stdin, Stdout, Stderr, TTY bool
	Ports                      bool // of the pod, instead of the others
}

// Join connects the client to the runtime's streaming server, which expects it at target. For
// commands, the runtime gets SPDY whether the client uses SPDY or WebSocket. It returns when the
// stream has ended; a rejection is sent to the client and is not an error.
func (s *Joiner) Join(w http.ResponseWriter, r *http.Request, target *url.URL, wanted Options) error {
	switch {
	case !wsstream.IsWebSocketRequest(r), wanted.Ports && wsstream.IsWebSocketRequestWithTunnelingProtocol(r):
		return s.relay(w, r, target)
	case wanted.Ports:
		s.pass(w, r, target)
		return nil
	default:
		return s.translate(w, r, target, wanted)
	}
}

// pass proxies the client's connection to the runtime: for ports, in the old WebSocket protocol.
func (s *Joiner) pass(w http.ResponseWriter, r *http.Request, target *url.URL) {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL, pr.Out.Host = target, target.Host
			pr.Out.Header.Del("Authorization") // it is for the agent
		},
		Transport: idleTransport{s.transport, s.idle},
		ModifyResponse: func(resp *http.Response) error {
			if resp.StatusCode == http.StatusSwitchingProtocols {
				w.Header().Del(httpstream.HeaderConnection) // the runtime's header applies
			}
			return nil
		},
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, fmt.Sprintf("streaming server of the container runtime: %v", err), http.StatusBadGateway)
		},
	}
	client := &upgradingWriter{ResponseWriter: w, ctx: r.Context(), idle: s.idle}
	defer client.close()
	proxy.ServeHTTP(client, r)
}

type refusal struct {
	status  int
	message string
}

func (e *refusal) Error() string {
	return fmt.Sprintf("streaming server of the container runtime: %d %s", e.status, e.message)
}

// dial opens a SPDY connection to the runtime with one of the subprotocols, and returns the
// selected one. It is closed when ctx is done.
func (s *Joiner) dial(ctx context.Context, target *url.URL, protocols ...string) (io.ReadWriteCloser, string, error) {
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
		return resp.Body.(io.ReadWriteCloser), resp.Header.Get(httpstream.HeaderProtocolVersion), nil // guaranteed by the documentation of http.Response
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return nil, "", &refusal{http.StatusBadGateway, err.Error()}
	}
	return nil, "", &refusal{resp.StatusCode, string(text)}
}
