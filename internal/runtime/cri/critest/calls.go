package critest

import (
	"context"
	"path"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errShutdown is the answer of a runtime that goes down during a call.
var errShutdown = status.Error(codes.Unavailable, "the runtime is shutting down")

func errUnimplemented(method string) error {
	return status.Errorf(codes.Unimplemented, "method %s not implemented", method)
}

// Call is one request that the runtime got.
type Call struct {
	Method  string    // without the service, such as "StartContainer"
	Request any       // *runtimeapi.StartContainerRequest and so on; not to be changed
	At      time.Time // when it came
	Done    time.Time // when it was answered; zero while it is in flight
	Err     error     // the answer's error
}

// Fault is something that goes wrong with calls of one method.
type Fault struct {
	// Method is the method without its service, such as "StartContainer". Empty means every method.
	Method string
	// Match limits the fault to some requests; nil means all of the method.
	Match func(request any) bool
	// Skip lets so many matching calls pass before the first one is hit.
	Skip int
	// Times is how many calls are hit: 0 means one, a negative number means all from then on.
	Times int
	// Err is the answer, usually a gRPC status. Without Hang or Errs it must be set.
	Err error
	// Errs, if set, returns the answer to each call in place of Err, as of a runtime whose messages
	// contain the ID that it made for the call.
	Errs func() error
	// Hang keeps the call without an answer until the client gives up or the runtime goes down.
	Hang bool
	// AfterWork does the work of the call first; otherwise nothing is done.
	AfterWork bool
	// Then, if set, is called when the fault happens, with the method of the call that is hit.
	Then func(method string)
}

// Inject adds a fault. Faults that match the same call are used up in the order in which they were
// injected, one per call.
func (r *Runtime) Inject(fault Fault) {
	if fault.Times == 0 {
		fault.Times = 1
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, &fault)
}

// Fail lets the next n calls of a method fail with err, before they do anything.
func (r *Runtime) Fail(method string, n int, err error) {
	r.Inject(Fault{Method: method, Times: n, Err: err})
}

// FailNth lets only the nth call of a method from now on (the first is 1) fail with err, before it
// does anything.
func (r *Runtime) FailNth(method string, n int, err error) {
	r.Inject(Fault{Method: method, Skip: n - 1, Err: err})
}

// FailAfterWork lets the next n calls of a method do their work and then fail with err.
func (r *Runtime) FailAfterWork(method string, n int, err error) {
	r.Inject(Fault{Method: method, Times: n, Err: err, AfterWork: true})
}

// Hang keeps the next n calls of a method without an answer until their clients give up; they do
// nothing.
func (r *Runtime) Hang(method string, n int) {
	r.Inject(Fault{Method: method, Times: n, Hang: true})
}

// ClearFaults forgets the faults that have not happened yet.
func (r *Runtime) ClearFaults() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = nil
}

// Stall keeps all calls from being handled, as a runtime does that is stopped in a debugger or
// starved, until the returned function is called. Clients may give up meanwhile; their calls do
// nothing then.
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

// Calls returns the calls so far in the order in which they came.
func (r *Runtime) Calls() []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := make([]Call, 0, len(r.calls))
	for _, call := range r.calls {
		calls = append(calls, *call)
	}
	return calls
}

// CallCount returns how many calls of a method came so far, event streams included.
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

// ResetCalls empties the list of calls.
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

// intercept is around every unary call.
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

// before waits out a stall and the method's latency and lets the faults happen that come before the
// work. It returns the fault that comes after the work.
func (r *Runtime) before(ctx context.Context, s *serving, method string, req any) (*Fault, error) {
	if err := r.waitStall(ctx, s); err != nil {
		return nil, err
	}
	fault := r.takeFault(method, req)
	if fault != nil && !fault.AfterWork {
		return nil, fault.happen(ctx, s, method)
	}
	// These two take their time after they have reserved their name.
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

// takeFault returns the fault that hits this call, or nil, and counts the call in all faults it
// matches.
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

// work takes the time that the method is set to take.
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
