package agenttest

import (
	"context"
	"path"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// callee is a plugin that agents call. It counts the calls about pods, and can be armed with a
// fault at one of them.
type callee struct {
	about func(request any) bool

	mu    sync.Mutex
	count int         // guarded by mu
	armed *callStrike // guarded by mu; nil for none
}

// calls returns the number of calls about pods.
func (c *callee) calls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

func (c *callee) arm(s *callStrike) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = s
}

// next counts a call, and returns its fault, or nil.
func (c *callee) next() *callStrike {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	if c.armed == nil {
		return nil
	}
	if c.armed.left--; c.armed.left > 0 {
		return nil
	}
	strike := c.armed
	c.armed = nil
	return strike
}

// intercept applies faults to calls.
func (c *callee) intercept(ctx context.Context, request any, call *grpc.UnaryServerInfo, carryOut grpc.UnaryHandler) (any, error) {
	if !c.about(request) {
		return carryOut(ctx, request)
	}
	strike := c.next()
	if strike == nil {
		return carryOut(ctx, request)
	}
	if strike.moment == AfterCall {
		if _, err := carryOut(ctx, request); err != nil {
			return nil, err
		}
	}
	strike.then(path.Base(call.FullMethod))
	return nil, status.Error(codes.Canceled, "the caller is gone")
}
