package cri

import (
	"cmp"
	"context"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

// Wait is a call for a pod that the runtime has not answered yet.
type Wait struct {
	// Call is the name of the call, such as "CreateContainer".
	Call string
	// Container is the one that it is about, "" for a call about the pod.
	Container string
	// Since is when an answer could be expected: when the call was made, or when the time was over that the call itself asks for, as a grace period.
	Since time.Time
	// Until is when the answer is given up.
	Until time.Time
}

// call is a call for a pod that is under way.
type call struct {
	Wait
	uid pod.UID
	id  string // of the container, "" when it is to be made
}

// podKey carries the pod that calls are made for.
type podKey struct{}

// For returns a context whose calls are made for the pod, so that Waits knows of them.
func For(ctx context.Context, uid pod.UID) context.Context {
	return context.WithValue(ctx, podKey{}, uid)
}

// noted notes that a call has begun, if it is for a pod and has a deadline; the returned function notes its end.
func (c *Client) noted(ctx context.Context, op string, began time.Time, req any) (end func()) {
	uid, known := ctx.Value(podKey{}).(pod.UID)
	until, limited := ctx.Deadline()
	if !known || !limited {
		return func() {}
	}
	made := &call{uid: uid, Wait: Wait{Call: op, Since: began, Until: until}}
	if extra, _ := ctx.Value(deadlineKey{}).(time.Duration); extra > 0 {
		made.Since = began.Add(extra)
	}
	switch r := req.(type) {
	case *runtimeapi.CreateContainerRequest:
		made.Container = r.GetConfig().GetMetadata().GetName()
	case interface{ GetContainerId() string }:
		made.id = r.GetContainerId()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[made] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.calls, made)
	}
}

// Waits returns the calls for a pod that the runtime has not answered, the oldest first. Containers have the names that the pod's newest
// observation gives them.
func (c *Client) Waits(observed *pod.Status) []Wait {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Wait
	for made := range c.calls {
		if made.uid != observed.UID {
			continue
		}
		w := made.Wait
		for i := range observed.Containers {
			if cs := &observed.Containers[i]; made.id == string(cs.ID) {
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
