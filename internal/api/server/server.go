package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"berth/internal/api/streams"
	"berth/internal/record/span"
	"berth/internal/runtime/logs"
)

// Config is the configuration of a Server.
type Config struct {
	Handlers Handlers
	// Tracer creates spans for requests to the secure port; nil: tracing is off.
	Tracer *span.Tracer
	// Listen opens the listener of the local API when Run starts; use Listen(runDir) of this
	// package for a real socket.
	Listen func() (net.Listener, error)
	// Kubelet configures the ports of kubelet mode; nil: only the local API.
	Kubelet *Kubelet
	// OpenFiles is the process's limit of open files (RLIMIT_NOFILE), of which clients get a part.
	// 0: sufficient.
	OpenFiles uint64
	// StreamIdleTimeout closes an exec, attach or port-forward after this time without data
	// (streamingConnectionIdleTimeout); 0: four hours.
	StreamIdleTimeout time.Duration
	// StreamTransport connects to the runtime's streaming server; nil: over the network.
	StreamTransport http.RoundTripper
	// NodeLogs are the logs at /logs/.
	NodeLogs NodeLogs
	// Scrapes are the Prometheus handlers by path: /metrics and below. They may wait as Stats may.
	Scrapes map[string]http.Handler
	// Metrics registers the metrics of requests to the kubelet's ports, SLIs those of health
	// checks; nil: not registered.
	Metrics, SLIs prometheus.Registerer
	// Debug configures access to the process, at the local API and the HTTPS port.
	Debug Debug
	Log   *slog.Logger
}

// Kubelet configures the ports of kubelet mode. A port without a listen function stays closed.
type Kubelet struct {
	// NodeName is the name of the node that requests are authorized for.
	NodeName string
	// ListenSecure, ListenReadOnly and ListenHealthz open HTTPS 10250, HTTP 10255 and HTTP 10248;
	// see ListenTCP.
	ListenSecure, ListenReadOnly, ListenHealthz func() (net.Listener, error)
	// Certificate returns the serving certificate for a handshake.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// MinTLSVersion, CipherSuites and Curves are tlsMinVersion, tlsCipherSuites and
	// tlsCurvePreferences; 0 and nil: TLS 1.2, and Go's choice.
	MinTLSVersion  uint16
	CipherSuites   []uint16
	Curves         []tls.CurveID
	Authentication Authentication
	Authorization  Authorization
	// DisableDebugging disables the paths that enter containers or show their logs
	// (enableDebuggingHandlers: false).
	DisableDebugging bool
	// Checkpoints configures /checkpoint.
	Checkpoints Checkpoints
	// DisableStatusz and DisableFlagz disable /statusz and /flagz (feature gates ComponentStatusz
	// and ComponentFlagz: false).
	DisableStatusz, DisableFlagz bool
}

// Server serves the API at all its listeners.
type Server struct {
	listeners           []*listener
	containers, proxied http.Handler
}

// Containers serves the paths that show and enter containers, without authorization: the caller
// authorizes each request.
func (s *Server) Containers() http.Handler { return s.containers }

// Proxied serves the paths of nodes/NAME/proxy, without authorization: the caller authorizes each
// request. No path enters a container or modifies the node.
func (s *Server) Proxied() http.Handler { return s.proxied }

// New returns a server that does not listen yet.
func New(cfg Config) (*Server, error) {
	if cfg.Listen == nil || cfg.Log == nil {
		return nil, errors.New("local API: a listener and a logger are needed")
	}
	if missing := cfg.Handlers.missing(cfg.Kubelet); len(missing) > 0 {
		return nil, fmt.Errorf("local API: handlers are missing: %s", strings.Join(missing, ", "))
	}
	b := newBuilder(cfg)
	b.local()
	s := &Server{containers: b.unlistened("containers").containers(), proxied: b.unlistened("node proxy").proxied(cfg.Kubelet)}
	if k := cfg.Kubelet; k != nil {
		if err := b.kubelet(k); err != nil {
			return nil, err
		}
	}
	s.listeners = b.listeners
	return s, nil
}

func (b *builder) kubelet(k *Kubelet) error {
	if k.ListenSecure != nil {
		if err := b.secure(k); err != nil {
			return fmt.Errorf("kubelet API: %w", err)
		}
	}
	if k.ListenReadOnly != nil {
		l, r := b.add("read-only kubelet API", k.ListenReadOnly, readOnlyLimits)
		l.serve(b.metrics.count("readonly", r.readOnly()))
	}
	if k.ListenHealthz != nil {
		l, r := b.add("healthz", k.ListenHealthz, readOnlyLimits)
		l.serve(r.healthz())
	}
	return nil
}

// builder creates listeners and their shared parts.
type builder struct {
	cfg       Config
	metrics   *metrics
	joiner    *streams.Joiner
	watches   *logs.Watches
	lists     *podLists
	listeners []*listener
}

func newBuilder(cfg Config) *builder {
	return &builder{
		cfg: cfg, metrics: newMetrics(cfg.Metrics, cfg.SLIs), watches: &logs.Watches{}, lists: &podLists{},
		joiner: streams.New(streams.Config{
			Transport: cfg.StreamTransport, IdleTimeout: cfg.StreamIdleTimeout, Log: cfg.Log,
			MaxForwarded: computeShare(maxForwarded, cfg.OpenFiles),
		}),
	}
}

func (b *builder) add(name string, listen func() (net.Listener, error), lim limits) (*listener, *routes) {
	lim.admitted, lim.unadmitted = computeShare(lim.admitted, b.cfg.OpenFiles), computeShare(lim.unadmitted, b.cfg.OpenFiles)
	l := &listener{
		name: name, listen: listen, limits: lim, requests: semaphore.NewWeighted(int64(lim.requests)), log: b.cfg.Log,
	}
	b.listeners = append(b.listeners, l)
	return l, b.routes(&responder{name: name, streams: semaphore.NewWeighted(int64(lim.streams)), log: b.cfg.Log})
}

// unlistened returns handlers for requests within the process.
func (b *builder) unlistened(name string) *routes {
	return b.routes(&responder{name: name, streams: semaphore.NewWeighted(int64(localLimits.streams)), log: b.cfg.Log})
}

func (b *builder) routes(out *responder) *routes {
	h := &b.cfg.Handlers
	finder := podFinder{h.Pods, h.Observed.Get}
	r := &routes{
		agent:    agentHandlers{out, h.Agent, h.Configuration},
		node:     nodeHandlers{out, h.Thresholds, h.Resources, h.View},
		images:   imageHandlers{out, h.Images},
		pods:     podHandlers{out, h.Pods, h.Observed, b.lists},
		logs:     logHandlers{out, finder, h.Logs, b.watches},
		streams:  streamHandlers{out, finder, h.Streams, b.joiner},
		journal:  journalHandlers{out, h},
		stats:    statsHandlers{out, h.Stats, b.cfg.Scrapes},
		health:   healthHandlers{out, b.metrics, h.Health},
		debug:    debugHandlers{out, b.cfg.Debug},
		nodeLogs: nodeLogHandlers{out, b.cfg.NodeLogs, semaphore.NewWeighted(maxLogQueries)},
	}
	if k := b.cfg.Kubelet; k != nil {
		r.checkpoints = checkpointHandlers{out, finder, k.Checkpoints}
		r.zpages = zpageHandlers{out: out, version: h.Agent.Version, settings: h.Configuration.Settings}
	}
	return r
}

func (b *builder) local() {
	l, r := b.add("local API", b.cfg.Listen, localLimits)
	l.serve(admit(r.local()))
}

func (b *builder) secure(k *Kubelet) error {
	if k.Certificate == nil {
		return errors.New("a serving certificate is needed")
	}
	authn, err := newAuthenticator(k.Authentication, b.cfg.Log)
	if err != nil {
		return err
	}
	authz, err := newAuthorizer(k.Authorization, k.NodeName)
	if err != nil {
		return err
	}
	l, r := b.add("kubelet API", k.ListenSecure, secureLimits)
	l.tls = &tls.Config{
		GetCertificate:   k.Certificate,
		MinVersion:       max(k.MinTLSVersion, tls.VersionTLS12),
		CipherSuites:     k.CipherSuites,
		CurvePreferences: k.Curves,
	}
	if k.Authentication.VerifyClient != nil {
		l.tls.ClientAuth = tls.RequestClientCert // verified on each request, with the current authorities
	}
	l.serve(guard{authn: authn, authz: authz, log: b.cfg.Log, next: admit(b.metrics.count("readwrite", traced(b.cfg.Tracer, r.secure(k))))})
	return nil
}

// Run opens every listener and serves until ctx is done; then streams are closed immediately and
// other responses get two seconds. It can be called once. If a listener cannot be opened, the
// others are closed.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, l := range s.listeners {
		g.Go(func() error { return l.run(ctx) })
	}
	return g.Wait()
}

// ListenTCP returns a function that listens on the address and port of a KubeletConfiguration.
func ListenTCP(address string, port int32) func() (net.Listener, error) {
	return func() (net.Listener, error) {
		return net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(int(port))))
	}
}
