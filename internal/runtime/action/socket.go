package action

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
)

// probeTCP opens and closes a connection.
func (a *Actions) probeTCP(ctx context.Context, t Target, s *v1.TCPSocketAction, timeout time.Duration) Result {
	address, err := t.address(s.Host, s.Port)
	if err != nil {
		return unknown(err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := a.connect(ctx, "tcp", address)
	if err != nil {
		return failure(err)
	}
	_ = c.Close() // an open connection is a success
	return Result{Outcome: Success}
}

// probeGRPC calls the health service (GRPC Health Checking Protocol) without TLS.
func (a *Actions) probeGRPC(ctx context.Context, t Target, g *v1.GRPCAction, timeout time.Duration) Result {
	if t.PodIP == "" {
		return Result{Unknown, fmt.Sprintf("container %q: the pod has no IP address yet", t.Container.Name)}
	}
	address := net.JoinHostPort(t.PodIP, strconv.Itoa(int(g.Port)))
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return a.connect(ctx, "tcp", address) }),
		grpc.WithUserAgent(probeAgent+kubernetesVersion()),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return unknown(fmt.Errorf("health service at %s: %w", address, err))
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req := &healthpb.HealthCheckRequest{}
	if g.Service != nil {
		req.Service = *g.Service
	}
	resp, err := healthpb.NewHealthClient(conn).Check(ctx, req)
	switch s := status.Convert(err); {
	case err == nil && resp.Status == healthpb.HealthCheckResponse_SERVING:
		return Result{Outcome: Success, Output: "service healthy"}
	case err == nil:
		return Result{Failure, fmt.Sprintf("service unhealthy (responded with %q)", resp.Status)}
	case s.Code() == codes.Unimplemented:
		return Result{Failure, "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): " + s.Message()}
	case s.Code() == codes.DeadlineExceeded && conn.GetState() != connectivity.Ready:
		return Result{Failure, fmt.Sprintf("timeout: failed to connect service %q within %s: %s", address, timeout, s.Message())}
	case s.Code() == codes.DeadlineExceeded:
		return Result{Failure, fmt.Sprintf("timeout: health rpc did not complete within %s", timeout)}
	case s.Code() == codes.Unavailable:
		return Result{Failure, fmt.Sprintf("error: failed to connect service %q: %s", address, s.Message())}
	default:
		return Result{Failure, "error: health rpc probe failed: " + err.Error()}
	}
}
