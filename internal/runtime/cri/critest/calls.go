package critest

import (
	"context"
	"path"
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

// Inject adds a fault. Faults that match the same call are consumed in the order in which they were
// injected, one per call.
func (r *Runtime) Inject(fault Fault) {
	if fault.Times == 0 {
		fault.Times = 1
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, &fault)
}

// Fail makes the next n calls of a method fail with err, before they do anything.
func (r *Runtime) Fail(method string, n int, err error) {
	r.Inject(Fault{Method: method, Times: n, Err: err})
}

// FailNth makes only the nth call of a method from now on (the first is 1) fail with err, before it
// does anything.
func (r *Runtime) FailNth(method string, n int, err error) {
	r.Inject(Fault{Method: method, Skip: n - 1, Err: err})
}

// FailAfterWork makes the next n calls of a method do their work and then fail with err.
func (r *Runtime) FailAfterWork(method string, n int, err error) {
	r.Inject(Fault{Method: method, Times: n, Err: err, AfterWork: true})
}

// Hang blocks the next n calls of a method until their clients cancel them; they do nothing.
func (r *Runtime) Hang(method string, n int) {
	r.Inject(Fault{Method: method, Times: n, Hang: true})
}

// ClearFaults removes the pending faults.
func (r *Runtime) ClearFaults() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = nil
}

// Stall blocks all calls, like a runtime that is stopped in a debugger or starved, until the
// returned function is called. Calls that clients cancel meanwhile do nothing.
func (r *Runtime) Stall() (release func()) {
	gate := make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stalled != nil {
		panic("critest: the runtime is stalled already")
	}
	r.stalled = gate
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.stalled == gate {
			r.stalled = nil
			close(gate)
		}
	}
}

// Calls returns the recorded calls in the order in which they were received.
func (r *Runtime) Calls() []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := make([]Call, 0, len(r.calls))
	for _, call := range r.calls {
		calls = append(calls, *call)
	}
	return calls
}

// CallCount returns the number of recorded calls of a method, including event streams.
func (r *Runtime) CallCount(method string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, call := range r.calls {
		if call.Method == method {
			n++
		}
	}
	return n
}

// ResetCalls clears the recorded calls.
func (r *Runtime) ResetCalls() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = nil
}

func (r *Runtime) record(method string, req any) *Call {
	call := &Call{Method: method, Request: req, At: time.Now()}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, call)
	return call
}

func (r *Runtime) finish(call *Call, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	call.Done = time.Now()
	call.Err = err
}

// intercept wraps every unary call.
func (r *Runtime) intercept(ctx context.Context, s *serving, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	call := r.record(method, req)
	resp, err := r.perform(ctx, s, method, req, handler)
	r.finish(call, err)
	return resp, err
}

func (r *Runtime) perform(ctx context.Context, s *serving, method string, req any, handler grpc.UnaryHandler) (any, error) {
	fault, err := r.before(ctx, s, method, req)
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
func (r *Runtime) before(ctx context.Context, s *serving, method string, req any) (*Fault, error) {
	if err := r.waitStall(ctx, s); err != nil {
		return nil, err
	}
	fault := r.takeFault(method, req)
	if fault != nil && !fault.AfterWork {
		return nil, fault.happen(ctx, s, method)
	}
	// These two methods wait after they have reserved their name.
	if method != "RunPodSandbox" && method != "CreateContainer" {
		if err := r.work(ctx, s, method); err != nil {
			return nil, err
		}
	}
	return fault, nil
}

func (r *Runtime) waitStall(ctx context.Context, s *serving) error {
	for {
		r.mu.Lock()
		gate := r.stalled
		r.mu.Unlock()
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
func (r *Runtime) takeFault(method string, req any) *Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, fault := range r.faults {
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
			r.faults = append(r.faults[:i:i], r.faults[i+1:]...)
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
func (r *Runtime) work(ctx context.Context, s *serving, method string) error {
	r.mu.Lock()
	d := r.latency[method]
	r.mu.Unlock()
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
