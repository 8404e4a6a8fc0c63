package cri

import (
	"context"
	"sync/atomic"
)

// traceKey is the context key of an *atomic.Pointer[string]: the name of the active call.
type traceKey struct{}

// WithTrace returns a context whose calls are traced: waitsFor returns the name of the active call,
// such as "ContainerStatus", "" if there is none. The calls must be sequential.
func WithTrace(ctx context.Context) (traced context.Context, waitsFor func() string) {
	t := new(atomic.Pointer[string])
	return context.WithValue(ctx, traceKey{}, t), func() string {
		if op := t.Load(); op != nil {
			return *op
		}
		return ""
	}
}

// traced records the start of a call; the returned function records its end.
func traced(ctx context.Context, op string) (end func()) {
	t, ok := ctx.Value(traceKey{}).(*atomic.Pointer[string])
	if !ok {
		return func() {}
	}
	t.Store(&op)
	return func() { t.Store(nil) }
}
