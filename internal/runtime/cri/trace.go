package cri

import (
	"context"
	"sync/atomic"
)

// traceKey carries an *atomic.Pointer[string]: the name of the call that is waited for.
type traceKey struct{}

// WithTrace returns a context whose calls can be asked for: waitsFor returns the name of the call,
// such as "ContainerStatus", that whoever uses the context waits for now, "" when for none. The
// calls are made one after the other.
func WithTrace(ctx context.Context) (traced context.Context, waitsFor func() string) {
	t := new(atomic.Pointer[string])
	return context.WithValue(ctx, traceKey{}, t), func() string {
		if op := t.Load(); op != nil {
			return *op
		}
		return ""
	}
}

// traced notes that a call has begun; the returned function notes its end.
func traced(ctx context.Context, op string) (end func()) {
	t, ok := ctx.Value(traceKey{}).(*atomic.Pointer[string])
	if !ok {
		return func() {}
	}
	t.Store(&op)
	return func() { t.Store(nil) }
}
