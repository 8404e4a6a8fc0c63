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

// Rate limit of all clients together, as in the kubelet: calls per second, and burst.
const (
	callsPerSecond = 100
	callsAtOnce    = 10
)

// Limits of connections. An unread response stays in memory, so few concurrent calls are possible.
// A connection is closed after connectionAge, which releases unread responses; gRPC clients
// reconnect automatically.
const (
	maxConnections   = 64
	maxStreams       = 4       // per connection; further calls wait
	maxRequestBytes  = 4 << 10 // a request has two names
	maxHeaderBytes   = 16 << 10
	handshakeTimeout = 10 * time.Second
	connectionAge    = 10 * time.Minute
	connectionGrace  = 30 * time.Second
)

// Config configures a Server.
type Config struct {
	// Socket is the path of the socket, <root>/pod-resources/kubelet.sock.
	Socket string
	// Listen opens the socket when Run starts; nil means Listen of this package, on Socket.
	Listen func() (net.Listener, error)

	Pods    Pods
	Devices Devices
	CPUs    CPUs
	Memory  Memory
	// Claims are the claims of dynamic resource allocation; nil if there are none.
	Claims Claims

	// ListKnown: List returns all known pods instead of the active ones (feature gate
	// KubeletPodResourcesListUseActivePods is off).
	ListKnown bool
	// Metrics is the registry for metrics; nil means that they are not registered.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Server serves the pod-resources API.
type Server struct {
	Config

	metrics *metrics
	bucket  flowcontrol.RateLimiter
}

// New returns a Server. It does not listen until Run is called.
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

// Run serves the API until ctx is done. It may be called again after it has returned. Any other
// error means that the API cannot be served.
// Differs from the kubelet: the process does not exit then.
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
	go func() { served <- g.Serve(limitConnections(l, s.Log)) }()
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

// errTooMany is the error of a rate-limited call; monitoring agents depend on its text.
var errTooMany = status.Error(codes.ResourceExhausted, "rejected by rate limit")

// admit rate-limits and counts calls.
func (s *Server) admit(ctx context.Context, in any, of *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if !s.bucket.TryAccept() {
		return nil, errTooMany
	}
	out, err := next(ctx, in)
	s.metrics.count(of.FullMethod, err)
	return out, err
}
