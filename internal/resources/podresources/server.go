package podresources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/util/flowcontrol"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
)

// The limits of all clients together, as in the kubelet: so many calls a second, and so many at
// once.
const (
	callsPerSecond = 100
	callsAtOnce    = 10
)

// The limits of connections. An answer that is not read stays in memory, so that few are possible
// at a time; a connection ends after some minutes, and with it what its client left lying. Clients
// of gRPC connect again by themselves.
const (
	maxConnections   = 64
	maxStreams       = 4       // on one connection; clients wait for their turn
	maxRequestBytes  = 4 << 10 // a request has two names
	maxHeaderBytes   = 16 << 10
	handshakeTimeout = 10 * time.Second
	connectionAge    = 10 * time.Minute
	connectionGrace  = 30 * time.Second
)

// Config is what a Server needs.
type Config struct {
	// Socket is where the API is served, <root>/pod-resources/kubelet.sock.
	Socket string
	// Listen opens the socket when Run begins; nil is Listen of this package, at Socket.
	Listen func() (net.Listener, error)

	Pods    Pods
	Devices Devices
	CPUs    CPUs
	Memory  Memory
	// Claims are those of dynamic resource allocation; nil: there is none.
	Claims Claims

	// ListKnown has List name all known pods instead of the active ones (feature gate
	// KubeletPodResourcesListUseActivePods: false).
	ListKnown bool
	// Metrics is where metrics of the API are registered; nil: nowhere.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Server serves the pod-resources API.
type Server struct {
	Config

	metrics *metrics
	bucket  flowcontrol.RateLimiter
}

// New returns a Server that does not listen until Run.
func New(cfg Config) (*Server, error) {
	if cfg.Pods == nil || cfg.Devices == nil || cfg.CPUs == nil || cfg.Memory == nil || cfg.Log == nil {
		return nil, errors.New("pod-resources API: pods, devices, CPUs, memory and a logger are needed")
	}
	if cfg.Listen == nil {
		if !filepath.IsAbs(cfg.Socket) {
			return nil, fmt.Errorf("pod-resources API: socket %q: must be an absolute path", cfg.Socket)
		}
		cfg.Listen = func() (net.Listener, error) { return Listen(cfg.Socket, cfg.Log) }
	}
	return &Server{
		Config: cfg, metrics: newMetrics(cfg.Metrics),
		bucket: flowcontrol.NewTokenBucketRateLimiter(callsPerSecond, callsAtOnce),
	}, nil
}

// Run serves until ctx is done. It can be called again after it returned. An error says that the
// API cannot be served.
// Differs from the kubelet: the process does not end by it.
func (s *Server) Run(ctx context.Context) error {
	l, err := s.Listen()
	if err != nil {
		return fmt.Errorf("pod-resources API: %w", err)
	}
	g := grpc.NewServer(
		grpc.UnaryInterceptor(s.admit),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: connectionAge, MaxConnectionAgeGrace: connectionGrace}),
		grpc.WaitForHandlers(true),
	)
	podresourcesv1.RegisterPodResourcesListerServer(g, serverV1{s: s})
	v1alpha1.RegisterPodResourcesListerServer(g, serverV1alpha1{s: s})
	served := make(chan error, 1)
	go func() { served <- g.Serve(boundedListener{l, newConnections(s.Log)}) }()
	select {
	case err := <-served:
		g.Stop()
		return fmt.Errorf("pod-resources API: serve: %w", err)
	case <-ctx.Done():
	}
	g.Stop()
	<-served
	return ctx.Err()
}

// errTooMany is what a client is told that calls too often; monitoring agents know its text.
var errTooMany = status.Error(codes.ResourceExhausted, "rejected by rate limit")

// admit lets a call in if the limits allow it, and counts it.
func (s *Server) admit(ctx context.Context, in any, of *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if !s.bucket.TryAccept() {
		return nil, errTooMany
	}
	out, err := next(ctx, in)
	s.metrics.count(of.FullMethod, err)
	return out, err
}
