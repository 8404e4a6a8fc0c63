package critest

import (
	"context"
	"path"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errShutdown is returned by calls that are active when the runtime shuts down.
var errShutdown = status.Error(codes.Unavailable, "the runtime is shutting down")

func errUnimplemented(method string) error {
	return status.Errorf(codes.Unimplemented, "method %s not implemented", method)
}

// Call is a recorded request.
type Call struct {
	Method  string    // without the service, such as "StartContainer"
	Request any       // *runtimeapi.StartContainerRequest and so on; must not be modified
	At      time.Time // when it was received
	Done    time.Time // when it was answered; zero while it is active
	Err     error     // the returned error
}

// Fault is an injected failure of calls of one method.
type Fault struct {
	// Method is the method without its service, such as "StartContainer". Empty means every method.
	Method string
	// Match limits the fault to some requests; nil means all of the method.
	Match func(request any) bool
	// Skip is the number of matching calls before the first one that fails.
	Skip int
	// Times is the number of calls that fail: 0 means one, a negative number all from then on.
	Times int
	// Err is the returned error, usually a gRPC status. It is required without Hang or Errs.
	Err error
	// Errs, if set, returns the error of each call instead of Err, such as messages that contain an
	// ID generated for the call.
	Errs func() error
	// Hang blocks the call until the client cancels it or the runtime shuts down.
	Hang bool
	// AfterWork does the work of the call first; otherwise nothing is done.
	AfterWork bool
	// Then, if set, is called when the fault is injected, with the method of the call.
	Then func(method string)
}

// Calls records the calls of clients, delays them and makes them fail.
type Calls struct {
	mu      sync.Mutex
	log     []*Call                  // guarded by mu
	latency map[string]time.Duration // guarded by mu
	faults  []*Fault                 // guarded by mu
	stalled chan struct{}            // guarded by mu; closed when the stall is released; nil if not stalled
}

// SetLatency makes each call of a method (such as "RunPodSandbox") take at least d before its work
// is done.
func (c *Calls) SetLatency(method string, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latency[method] = d
}

// Inject adds a fault. Faults that match the same call are consumed in the order in which they were
// injected, one per call.
func (c *Calls) Inject(fault Fault) {
	if fault.Times == 0 {
		fault.Times = 1
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, &fault)
}

// Fail makes the next n calls of a method fail with err, before they do anything.
func (c *Calls) Fail(method string, n int, err error) {
	c.Inject(Fault{Method: method, Times: n, Err: err})
}

// FailNth makes only the nth call of a method from now on (the first is 1) fail with err, before it
// does anything.
func (c *Calls) FailNth(method string, n int, err error) {
	c.Inject(Fault{Method: method, Skip: n - 1, Err: err})
}

// FailAfterWork makes the next n calls of a method do their work and then fail with err.
func (c *Calls) FailAfterWork(method string, n int, err error) {
	c.Inject(Fault{Method: method, Times: n, Err: err, AfterWork: true})
}

// Hang blocks the next n calls of a method until their clients cancel them; they do nothing.
func (c *Calls) Hang(method string, n int) {
	c.Inject(Fault{Method: method, Times: n, Hang: true})
}

// ClearFaults removes the pending faults.
func (c *Calls) ClearFaults() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = nil
}

// Stall blocks all calls, like a runtime that is stopped in a debugger or starved, until the
// returned function is called. Calls that clients cancel meanwhile do nothing.
func (c *Calls) Stall() (release func()) {
	gate := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stalled != nil {
		panic("critest: the runtime is stalled already")
	}
	c.stalled = gate
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.stalled == gate {
			c.stalled = nil
			close(gate)
		}
	}
}

// All returns the recorded calls in the order in which they were received.
func (c *Calls) All() []Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := make([]Call, 0, len(c.log))
	for _, call := range c.log {
		calls = append(calls, *call)
	}
	return calls
}

// Count returns the number of recorded calls of a method, including event streams.
func (c *Calls) Count(method string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, call := range c.log {
		if call.Method == method {
			n++
		}
	}
	return n
}

// Reset clears the recorded calls.
func (c *Calls) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = nil
}

func (c *Calls) record(method string, req any) *Call {
	call := &Call{Method: method, Request: req, At: time.Now()}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, call)
	return call
}

func (c *Calls) finish(call *Call, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	call.Done = time.Now()
	call.Err = err
}

// intercept wraps every unary call.
func (c *Calls) intercept(ctx context.Context, s *serving, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	call := c.record(method, req)
	resp, err := c.perform(ctx, s, method, req, handler)
	c.finish(call, err)
	return resp, err
}

func (c *Calls) perform(ctx context.Context, s *serving, method string, req any, handler grpc.UnaryHandler) (any, error) {
	fault, err := c.before(ctx, s, method, req)
	if err != nil {
		return nil, err
	}
	resp, err := handler(ctx, req)
	if err != nil || fault == nil {
		return resp, err
	}
	return nil, fault.happen(ctx, s, method)
}

// before waits for a stall and the method's latency and injects faults that precede the work. It
// returns the fault that follows the work.
func (c *Calls) before(ctx context.Context, s *serving, method string, req any) (*Fault, error) {
	if err := c.waitStall(ctx, s); err != nil {
		return nil, err
	}
	fault := c.takeFault(method, req)
	if fault != nil && !fault.AfterWork {
		return nil, fault.happen(ctx, s, method)
	}
	// These two methods wait after they have reserved their name.
	if method != "RunPodSandbox" && method != "CreateContainer" {
		if err := c.work(ctx, s, method); err != nil {
			return nil, err
		}
	}
	return fault, nil
}

func (c *Calls) waitStall(ctx context.Context, s *serving) error {
	for {
		c.mu.Lock()
		gate := c.stalled
		c.mu.Unlock()
		if gate == nil {
			return nil
		}
		select {
		case <-gate:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-s.stopped:
			return errShutdown
		}
	}
}

// takeFault returns the fault for this call, or nil, and counts the call in all faults it matches.
func (c *Calls) takeFault(method string, req any) *Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, fault := range c.faults {
		if fault.Method != "" && fault.Method != method || fault.Match != nil && !fault.Match(req) {
			continue
		}
		if fault.Skip > 0 {
			fault.Skip--
			continue
		}
		hit := *fault
		if fault.Times > 0 {
			fault.Times--
		}
		if fault.Times == 0 {
			c.faults = append(c.faults[:i:i], c.faults[i+1:]...)
		}
		return &hit
	}
	return nil
}

func (f *Fault) happen(ctx context.Context, s *serving, method string) error {
	if f.Then != nil {
		f.Then(method)
	}
	switch {
	case f.Hang:
	case f.Errs != nil:
		return f.Errs()
	default:
		return f.Err
	}
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-s.stopped:
		return errShutdown
	}
}

// work waits for the method's latency.
func (c *Calls) work(ctx context.Context, s *serving, method string) error {
	c.mu.Lock()
	d := c.latency[method]
	c.mu.Unlock()
	return pause(ctx, s, d)
}

func pause(ctx context.Context, s *serving, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-s.stopped:
		return errShutdown
	}
}
