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
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"berth/internal/logs"
)

// Config is what a Server needs.
type Config struct {
	Handlers Handlers
	// Listen opens the listener of the local API when Run begins; Listen(runDir) of this package is the one for a real socket.
	Listen func() (net.Listener, error)
	// Kubelet are the doors of kubelet mode; nil: only the local API.
	Kubelet *Kubelet
	// OpenFiles is how many files the process may have open (RLIMIT_NOFILE): clients get a part of them. 0: enough.
	OpenFiles uint64
	// StreamIdleTimeout ends an exec, attach or port-forward that nothing went through for so long
	// (streamingConnectionIdleTimeout); 0: four hours.
	StreamIdleTimeout time.Duration
	// StreamTransport connects to the runtime's streaming server; nil: over the network.
	StreamTransport http.RoundTripper
	// Scrapes are what Prometheus scrapes, by path: /metrics and what is below it. They may wait as
	// Stats may.
	Scrapes map[string]http.Handler
	// Metrics is where metrics of requests at the kubelet's ports are registered, SLIs where those
	// of health checks are; nil: nowhere.
	Metrics, SLIs prometheus.Registerer
	// Debug is what looks into the process, at the local API and the HTTPS port.
	Debug Debug
	Log   *slog.Logger
}

// Kubelet are the ports of kubelet mode. A door without a listen function stays closed.
type Kubelet struct {
	// NodeName is the name of the node that requests are authorized for.
	NodeName string
	// ListenSecure, ListenReadOnly and ListenHealthz open HTTPS 10250, HTTP 10255 and HTTP 10248; see ListenTCP.
	ListenSecure, ListenReadOnly, ListenHealthz func() (net.Listener, error)
	// Certificate returns the certificate that a handshake shows.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// MinTLSVersion, CipherSuites and Curves are tlsMinVersion, tlsCipherSuites and tlsCurvePreferences; 0 and nil: TLS 1.2, and Go's choice.
	MinTLSVersion  uint16
	CipherSuites   []uint16
	Curves         []tls.CurveID
	Authentication Authentication
	Authorization  Authorization
	// DisableDebugging closes what enters containers or shows their logs (enableDebuggingHandlers: false).
	DisableDebugging bool
	// NodeLogs are what /logs/ shows.
	NodeLogs NodeLogs
	// Checkpoints are what /checkpoint makes.
	Checkpoints Checkpoints
}

// Server serves the API at all its doors.
type Server struct {
	doors []*door
}

// New returns a server that does not listen yet.
func New(cfg Config) (*Server, error) {
	h := cfg.Handlers
	if h.Pods == nil || h.Pod == nil || h.Subscribe == nil || h.ContainerLog == nil || h.Problems == nil || h.Journal == nil ||
		h.Version == nil || h.Stop == nil || h.Healthz == nil {
		return nil, errors.New("local API: every handler is needed")
	}
	if (h.Streaming == nil) != (h.Observed == nil) {
		return nil, errors.New("local API: exec needs both the runtime's streams and what was observed of it")
	}
	if cfg.Listen == nil || cfg.Log == nil {
		return nil, errors.New("local API: a listener and a logger are needed")
	}
	count := newMetrics(cfg.Metrics, cfg.SLIs)
	streaming, watches, lists := newRuntimeStreams(cfg), &logs.Watches{}, &podLists{}
	newDoor := func(name string, listen func() (net.Listener, error), l limits) *door {
		l.known, l.strangers = computeShare(l.known, cfg.OpenFiles), computeShare(l.strangers, cfg.OpenFiles)
		return &door{
			name: name, h: h, listen: listen, log: cfg.Log, streaming: streaming, watches: watches, lists: lists, limits: l,
			requests: make(gate, l.requests), streams: make(gate, l.streams), scrapes: cfg.Scrapes, metrics: count,
		}
	}
	local := newDoor("local API", cfg.Listen, localLimits)
	local.handler = local.limit(admit(local.localRoutes(cfg.Debug)))
	s := &Server{doors: []*door{local}}
	k := cfg.Kubelet
	if k == nil {
		return s, nil
	}
	if h.ObservedPods == nil || h.Configz == nil {
		return nil, errors.New("kubelet API: the runtime's pods and the configuration are needed")
	}
	if k.ListenSecure != nil {
		d := newDoor("kubelet API", k.ListenSecure, secureLimits)
		if err := d.secure(k, cfg.Debug); err != nil {
			return nil, fmt.Errorf("kubelet API: %w", err)
		}
		s.doors = append(s.doors, d)
	}
	if k.ListenReadOnly != nil {
		d := newDoor("read-only kubelet API", k.ListenReadOnly, readOnlyLimits)
		d.handler = d.limit(d.metrics.count("readonly", d.readOnlyRoutes()))
		s.doors = append(s.doors, d)
	}
	if k.ListenHealthz != nil {
		d := newDoor("healthz", k.ListenHealthz, readOnlyLimits)
		d.handler = d.limit(d.healthzRoutes())
		s.doors = append(s.doors, d)
	}
	return s, nil
}

// secure makes the door the HTTPS port.
func (d *door) secure(k *Kubelet, dbg Debug) error {
	if k.Certificate == nil {
		return errors.New("a serving certificate is needed")
	}
	who, err := newAuthenticator(k.Authentication, d.log)
	if err != nil {
		return err
	}
	may, err := newAuthorizer(k.Authorization, k.NodeName)
	if err != nil {
		return err
	}
	d.tls = &tls.Config{
		GetCertificate:   k.Certificate,
		MinVersion:       max(k.MinTLSVersion, tls.VersionTLS12),
		CipherSuites:     k.CipherSuites,
		CurvePreferences: k.Curves,
	}
	if k.Authentication.VerifyClient != nil {
		d.tls.ClientAuth = tls.RequestClientCert // verified with each request, by the authorities of that moment
	}
	routes := d.secureRoutes(k, dbg)
	if k.DisableDebugging {
		routes = withoutDebugging(routes)
	}
	d.handler = d.limit(guard{who: who, may: may, log: d.log, next: admit(d.metrics.count("readwrite", routes))})
	return nil
}

// Run listens at every door and serves until ctx is done; then streams end at once and other answers get two seconds. It can be
// called once. A door that cannot be opened ends the others.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, d := range s.doors {
		g.Go(func() error { return d.run(ctx) })
	}
	return g.Wait()
}

// ListenTCP returns a function that listens on the address and port of a KubeletConfiguration.
func ListenTCP(address string, port int32) func() (net.Listener, error) {
	return func() (net.Listener, error) {
		return net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(int(port))))
	}
}
