// Package cri is the client of the container runtime: the only place that speaks CRI's gRPC.
//
// Owns: the connections, deadlines and error classes of CRI calls; the codec of labels and annotations; the reading of one pod.
// Reads: the runtime.
// Never: retries (but for RemoveContainer, see task.go), caches or decides.
package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// maxMessage bounds one answer of the runtime, as the kubelet does.
	maxMessage = 16 << 20
	// DefaultTimeout is KubeletConfiguration's runtimeRequestTimeout.
	DefaultTimeout = 2 * time.Minute
)

// What errors call the two servers.
const (
	runtimeServer = "container runtime"
	imageServer   = "image service"
)

// Dialer opens a connection to the runtime; the address is the endpoint as configured.
type Dialer func(ctx context.Context, address string) (net.Conn, error)

// Config says where the runtime is.
type Config struct {
	// Endpoint is the CRI socket: "unix:///run/containerd/containerd.sock" or an absolute path.
	Endpoint string
	// ImageEndpoint is the CRI socket of the image service; "" is that of the runtime.
	ImageEndpoint string
	// Timeout of an ordinary call; 0 means DefaultTimeout.
	Timeout time.Duration
	// Dial replaces the dialling of the unix socket, for tests in memory.
	Dial Dialer
	// Metrics is where metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
}

// Client calls one runtime. Its methods are safe for concurrent use. Errors carry a class (see errors.go).
//
// Calls that change the runtime's state are not cancelled with their context: containerd keeps the name of a cancelled
// RunPodSandbox or CreateContainer reserved for a while, so that a cancelled call costs more than a finished one. A pass is
// ended between calls. StopContainer, ExecSync and PullImage are the exceptions.
type Client struct {
	timeout time.Duration
	metrics *metrics
	conn    *lanes
	events  *grpc.ClientConn // of its own: a stalled call must not hold up the event stream
	runtime runtimeapi.RuntimeServiceClient
	images  runtimeapi.ImageServiceClient
	// imageConn is conn unless images have a service of their own.
	imageConn *lanes
	stream    runtimeapi.RuntimeServiceClient
	// noStreams is set while the runtime is known to offer no streamed lists.
	noStreams atomic.Bool

	mu    sync.Mutex
	calls map[*call]bool // guarded by mu; those for pods that are under way
}

// New returns a client that connects at its first call.
func New(cfg Config) (*Client, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	c := &Client{timeout: cfg.Timeout, metrics: newMetrics(cfg.Metrics), calls: map[*call]bool{}}
	var err error
	if c.conn, err = c.newLanes(runtimeServer, cfg.Endpoint, cfg.Dial); err != nil {
		return nil, err
	}
	c.imageConn = c.conn
	if cfg.ImageEndpoint != "" && cfg.ImageEndpoint != cfg.Endpoint {
		if c.imageConn, err = c.newLanes(imageServer, cfg.ImageEndpoint, cfg.Dial); err != nil {
			return nil, errors.Join(err, c.conn.Close())
		}
	}
	if c.events, err = connect(runtimeServer, cfg.Endpoint, cfg.Dial, c.interceptFor(runtimeServer), 0); err != nil {
		return nil, errors.Join(err, c.conn.Close(), c.imageConn.Close())
	}
	c.runtime = runtimeapi.NewRuntimeServiceClient(c.conn)
	c.images = runtimeapi.NewImageServiceClient(c.imageConn)
	c.stream = runtimeapi.NewRuntimeServiceClient(c.events)
	return c, nil
}

func (c *Client) newLanes(what, endpoint string, dial Dialer) (*lanes, error) {
	return newLanes(func(idle time.Duration) (*grpc.ClientConn, error) {
		return connect(what, endpoint, dial, c.interceptFor(what), idle)
	})
}

// connect returns a connection to a socket, which closes while it was not used for idle and is opened again, 0: never; what names it in errors.
func connect(what, endpoint string, dial Dialer, intercept grpc.UnaryClientInterceptor, idle time.Duration) (*grpc.ClientConn, error) {
	if dial == nil {
		path, ok := strings.CutPrefix(endpoint, "unix://")
		if !ok && !strings.HasPrefix(endpoint, "/") {
			return nil, fmt.Errorf("%s endpoint %q: not a unix socket; use unix:///path/to.sock", what, endpoint)
		}
		dial = func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}
	}
	conn, err := grpc.NewClient("passthrough:///"+endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dial),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithUnaryInterceptor(intercept),
		grpc.WithIdleTimeout(idle),
		// The default back-off of 1 s × 1.6 would add seconds to every restart of the runtime.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("%s endpoint %q: %w", what, endpoint, err)
	}
	return conn, nil
}

// Close ends the connections; calls in flight fail.
func (c *Client) Close() error {
	errs := []error{c.conn.Close(), c.events.Close()}
	if c.imageConn != c.conn {
		errs = append(errs, c.imageConn.Close())
	}
	return errors.Join(errs...)
}

// deadlineKey carries a deadline of its own for a call, in addition to the client's.
type deadlineKey struct{}

// noDeadline as a deadline of its own leaves the call to its context alone.
const noDeadline time.Duration = -1

func withExtraTime(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, deadlineKey{}, d)
}

// mutating calls run to their end whatever becomes of their context.
var mutating = map[string]bool{
	"RunPodSandbox": true, "StopPodSandbox": true, "RemovePodSandbox": true,
	"CreateContainer": true, "StartContainer": true, "RemoveContainer": true, "RemoveImage": true,
	"UpdateContainerResources": true, "UpdatePodSandboxResources": true,
}

// interceptFor returns what each call of a server, which errors name so, goes through.
func (c *Client) interceptFor(server string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		op := method[strings.LastIndexByte(method, '/')+1:]
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		defer traced(ctx, op)()
		began := time.Now()
		ctx, cancel := c.bounded(ctx, op, began)
		defer cancel()
		defer c.noted(ctx, op, began, req)()
		err := classify(ctx, op, server, began, invoke(ctx, method, req, reply, cc, opts...))
		if strings.HasPrefix(method, "/runtime.v1.") {
			c.metrics.called(op, req, time.Since(began), err)
		}
		return err
	}
}

// bounded returns the context with the deadline of a call that begins now, which a call that changes something has only that of.
func (c *Client) bounded(ctx context.Context, op string, began time.Time) (context.Context, context.CancelFunc) {
	extra, _ := ctx.Value(deadlineKey{}).(time.Duration)
	limit := c.timeout + extra
	if op == "RunPodSandbox" {
		limit *= 2
	}
	if mutating[op] {
		ctx = context.WithoutCancel(ctx)
	}
	if op == "PullImage" || extra == noDeadline {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, began.Add(limit))
}
