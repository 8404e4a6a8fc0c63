// Package cri is the client of the container runtime: the only package that calls CRI's gRPC API.
//
// Owns: the connections, deadlines and error classes of CRI calls; the codec of labels and
// annotations; reading the status of one pod.
// Reads: the runtime.
// Never: retries (except RemoveContainer, see task.go), caches or decides.
package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// maxMessage bounds the size of a response in bytes, as the kubelet does.
	maxMessage = 16 << 20
	// DefaultTimeout is KubeletConfiguration's runtimeRequestTimeout.
	DefaultTimeout = 2 * time.Minute
)

// Names of the two servers in errors.
const (
	runtimeServer = "container runtime"
	imageServer   = "image service"
)

// Dialer opens a connection to the runtime; the address is the endpoint as configured.
type Dialer func(ctx context.Context, address string) (net.Conn, error)

// Config configures a Client.
type Config struct {
	// Endpoint is the CRI socket: "unix:///run/containerd/containerd.sock" or an absolute path.
	Endpoint string
	// ImageEndpoint is the CRI socket of the image service; "" is that of the runtime.
	ImageEndpoint string
	// Timeout of an ordinary call; 0 means DefaultTimeout.
	Timeout time.Duration
	// Dial replaces dialling the unix socket, for in-memory tests.
	Dial Dialer
	// RecordedHandlers are the runtime handlers that the runtime is asked for by another name.
	RecordedHandlers map[string]string
	// Metrics is the registry for metrics; nil: they are not registered.
	Metrics prometheus.Registerer
}

// Client calls one runtime: pods and containers by its own methods, the rest by its fields. All
// methods are safe for concurrent use. Errors carry a class (see errors.go).
//
// Calls that change the runtime's state are not cancelled with their context: containerd keeps the
// name of a cancelled RunPodSandbox or CreateContainer reserved for a while, so that a cancelled
// call costs more than a completed one. A pass is cancelled between calls. StopContainer, ExecSync
// and PullImage are the exceptions.
type Client struct {
	Images    *Images
	Streaming *Streaming
	Observer  *Observer
	Tasks     *Tasks
	Calls     *Calls

	runtime          runtimeapi.RuntimeServiceClient
	recordedHandlers map[string]string
	close            []func() error
}

// New returns a client that connects lazily.
func New(cfg Config) (*Client, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	calls := &Calls{timeout: cfg.Timeout, metrics: newMetrics(cfg.Metrics), active: map[*call]bool{}}
	c := &Client{Calls: calls, recordedHandlers: cfg.RecordedHandlers}
	pool, err := c.newPool(runtimeServer, cfg.Endpoint, cfg.Dial)
	if err != nil {
		return nil, err
	}
	images := pool
	if cfg.ImageEndpoint != "" && cfg.ImageEndpoint != cfg.Endpoint {
		if images, err = c.newPool(imageServer, cfg.ImageEndpoint, cfg.Dial); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	// A separate connection: a stalled call must not block the event stream.
	events, err := connect(runtimeServer, cfg.Endpoint, cfg.Dial, calls.intercept(runtimeServer), 0)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.close = append(c.close, events.Close)
	c.runtime = runtimeapi.NewRuntimeServiceClient(pool)
	c.Images = &Images{
		service: runtimeapi.NewImageServiceClient(images), runtime: c.runtime, snapshots: snapshotsapi.NewSnapshotsClient(pool),
	}
	c.Streaming = &Streaming{c.runtime}
	c.Observer = &Observer{runtime: c.runtime, events: runtimeapi.NewRuntimeServiceClient(events), timeout: cfg.Timeout}
	c.Tasks = &Tasks{tasksapi.NewTasksClient(pool)}
	return c, nil
}

func (c *Client) newPool(server, endpoint string, dial Dialer) (*connPool, error) {
	pool, err := newConnPool(func(idle time.Duration) (*grpc.ClientConn, error) {
		return connect(server, endpoint, dial, c.Calls.intercept(server), idle)
	})
	if err != nil {
		return nil, err
	}
	c.close = append(c.close, pool.Close)
	return pool, nil
}

// connect returns a connection to a socket, which closes after it was idle for that time and
// reconnects on use, 0: never; server is the server's name in errors.
func connect(server, endpoint string, dial Dialer, intercept grpc.UnaryClientInterceptor, idle time.Duration) (*grpc.ClientConn, error) {
	if dial == nil {
		path, ok := strings.CutPrefix(endpoint, "unix://")
		if !ok && !strings.HasPrefix(endpoint, "/") {
			return nil, fmt.Errorf("%s endpoint %q: not a unix socket; use unix:///path/to.sock", server, endpoint)
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
		return nil, fmt.Errorf("%s endpoint %q: %w", server, endpoint, err)
	}
	return conn, nil
}

// Close closes the connections; active calls fail.
func (c *Client) Close() error {
	var errs []error
	for _, each := range c.close {
		errs = append(errs, each())
	}
	return errors.Join(errs...)
}
