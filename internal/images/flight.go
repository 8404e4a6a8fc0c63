package images

import (
	"context"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// flightKey says which pulls are the same pull. Credentials will be part of it when there are any.
type flightKey struct {
	image, handler string
}

// flight is one pull that any number of callers wait for. The fields below done are written before done is closed and only
// read after it.
type flight struct {
	cancel  context.CancelFunc
	waiters int // guarded by flights.mu
	done    chan struct{}

	ref  string
	size uint64 // bytes; 0 when unknown
	took time.Duration
	err  error
}

type flights struct {
	runtime Runtime
	slots   chan struct{} // nil when pulls are not limited
	now     func() time.Time

	mu      sync.Mutex
	pulling map[flightKey]*flight // guarded by mu
}

// pull waits for the pull of spec, starting it unless it is in flight. When ctx ends before, it returns ctx's cause; the
// last caller to leave cancels the pull and waits until the runtime has let go of it.
func (f *flights) pull(ctx context.Context, spec *runtimeapi.ImageSpec, sandbox *runtimeapi.PodSandboxConfig) (*flight, error) {
	key := flightKey{image: spec.Image, handler: spec.RuntimeHandler}
	fl := f.join(key, spec, sandbox)
	select {
	case <-fl.done:
		return fl, nil
	case <-ctx.Done():
	}
	if f.leave(key, fl) {
		fl.cancel()
		<-fl.done
	}
	return nil, context.Cause(ctx)
}

func (f *flights) join(key flightKey, spec *runtimeapi.ImageSpec, sandbox *runtimeapi.PodSandboxConfig) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl, ok := f.pulling[key]; ok {
		fl.waiters++
		return fl
	}
	// Not derived from the caller's context: the pull serves whoever joins, and must survive the first caller.
	ctx, cancel := context.WithCancel(context.Background())
	fl := &flight{cancel: cancel, waiters: 1, done: make(chan struct{})}
	f.pulling[key] = fl
	go f.run(ctx, key, fl, spec, sandbox)
	return fl
}

// leave reports whether the caller was the last to wait for the flight. Then the flight is not joined any more.
func (f *flights) leave(key flightKey, fl *flight) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl.waiters--
	if fl.waiters > 0 {
		return false
	}
	if f.pulling[key] == fl {
		delete(f.pulling, key)
	}
	return true
}

func (f *flights) run(ctx context.Context, key flightKey, fl *flight, spec *runtimeapi.ImageSpec, sandbox *runtimeapi.PodSandboxConfig) {
	defer close(fl.done)
	defer fl.cancel()
	if f.slots != nil {
		select {
		case f.slots <- struct{}{}:
			defer func() { <-f.slots }()
		case <-ctx.Done():
			fl.err = context.Cause(ctx)
			return
		}
	}
	began := f.now()
	fl.ref, fl.err = f.runtime.PullImage(ctx, spec, nil, sandbox)
	fl.took = f.now().Sub(began)
	// From here on a new caller gets a pull of its own: with policy Always the registry is asked at every start.
	f.mu.Lock()
	if f.pulling[key] == fl {
		delete(f.pulling, key)
	}
	f.mu.Unlock()
	if fl.err != nil {
		return
	}
	// The size is for the event's text only; a pull that succeeded does not fail for the lack of it.
	if img, err := f.runtime.ImageStatus(ctx, spec); err == nil && img != nil {
		fl.size = img.Size
	}
}
