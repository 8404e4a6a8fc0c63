package cri

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/record/span"
)

// Calls intercepts every call: it sets the deadline, traces and counts the call, and tracks it
// while it is active.
type Calls struct {
	timeout time.Duration // of an ordinary call
	metrics *metrics

	mu     sync.Mutex
	active map[*call]bool // guarded by mu; those for pods
}

// intercept returns the interceptor for the calls to a server; server is its name in errors.
func (c *Calls) intercept(server string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		op := method[strings.LastIndexByte(method, '/')+1:]
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		defer traced(ctx, op)()
		began := time.Now()
		limit := computeLimit(op, req, c.timeout)
		ctx, cancel := limit.bound(ctx, began)
		defer cancel()
		defer c.begin(ctx, op, began.Add(limit.requested), req)()
		ctx, ended := span.Start(ctx, span.Client, strings.TrimPrefix(method, "/"), span.Attribute{Key: "rpc.system", Value: "grpc"}, span.Attribute{Key: "rpc.method", Value: op})
		if parent := span.Parent(ctx); parent != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", parent)
		}
		err := classify(ctx, op, server, began, invoke(ctx, method, req, reply, cc, opts...))
		ended(err)
		if strings.HasPrefix(method, "/runtime.v1.") {
			c.metrics.called(op, req, time.Since(began), err)
		}
		return err
	}
}

// Wait is a call for a pod that the runtime has not answered yet.
type Wait struct {
	// Call is the name of the call, such as "CreateContainer".
	Call string
	// Container is the container of the call, "" for a call about the pod.
	Container string
	// Since is when a response was first expected: the start of the call, plus the time that the
	// request asks for, such as a grace period.
	Since time.Time
	// Until is the call's deadline.
	Until time.Time
}

// call is an active call for a pod.
type call struct {
	Wait
	uid pod.UID
	id  string // of the container, "" if it is being created
}

// podKey is the context key of the pod that calls are made for.
type podKey struct{}

// WithPod returns a context whose calls are made for the pod and reported by Waits.
func WithPod(ctx context.Context, uid pod.UID) context.Context {
	return context.WithValue(ctx, podKey{}, uid)
}

// begin tracks a call, if it is for a pod and has a deadline; a response is expected at since. The
// returned function removes it.
func (c *Calls) begin(ctx context.Context, op string, since time.Time, req any) (end func()) {
	uid, known := ctx.Value(podKey{}).(pod.UID)
	until, limited := ctx.Deadline()
	if !known || !limited {
		return func() {}
	}
	active := &call{uid: uid, Wait: Wait{Call: op, Since: since, Until: until}}
	switch r := req.(type) {
	case *runtimeapi.CreateContainerRequest:
		active.Container = r.GetConfig().GetMetadata().GetName()
	case interface{ GetContainerId() string }:
		active.id = r.GetContainerId()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active[active] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.active, active)
	}
}

// Waits returns the calls for a pod that the runtime has not answered, the oldest first. Container
// names are taken from observed.
func (c *Calls) Waits(observed *pod.Status) []Wait {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Wait
	for active := range c.active {
		if active.uid != observed.UID {
			continue
		}
		w := active.Wait
		for i := range observed.Containers {
			if cs := &observed.Containers[i]; active.id == string(cs.ID) {
				w.Container = cs.Name
			}
		}
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b Wait) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Call, b.Call), cmp.Compare(a.Container, b.Container))
	})
	return out
}
