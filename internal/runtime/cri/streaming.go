package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Streaming prepares streams into containers and sandboxes.
type Streaming struct {
	runtime runtimeapi.RuntimeServiceClient
}

// Exec prepares a command in the container and returns the URL of the runtime's streaming server,
// to which the client must connect once.
func (s *Streaming) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (url string, err error) {
	r, err := s.runtime.Exec(ctx, req)
	return r.GetUrl(), err
}

// Attach is Exec for the container's own process.
func (s *Streaming) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (url string, err error) {
	r, err := s.runtime.Attach(ctx, req)
	return r.GetUrl(), err
}

// PortForward is Exec for the ports of a sandbox.
func (s *Streaming) PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (url string, err error) {
	r, err := s.runtime.PortForward(ctx, req)
	return r.GetUrl(), err
}

// ExecSync runs a command in the container and returns its output and exit code. Timeout, in
// seconds, bounds the command; with 0 only ctx does. When ctx is done, the runtime kills the
// command.
func (s *Streaming) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return s.runtime.ExecSync(ctx, req)
}
