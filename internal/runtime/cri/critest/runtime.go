package critest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// connBuffer is the number of bytes that an in-memory connection buffers before its writer blocks.
const connBuffer = 64 << 10

const deprecations = "ContainerdHasNoDeprecationWarnings"

// maxMessage is the maximum size of a gRPC message in bytes, as agents configure it.
const maxMessage = 16 << 20

// Runtime is a fake container runtime. Create it by New, or by Start in a test.
type Runtime struct {
	mu         sync.Mutex
	config     config
	serving    *serving // nil while the runtime is down
	closed     bool
	ids        int
	names      map[string]string // reserved name → id
	sandboxes  shelf[*sandbox]
	addressed  map[string]*sandbox // by IP
	containers shelf[*container]
	images     map[string]*image // by id
	registry   map[string]RegistryImage
	programs   map[string]Program // by image or by container reference
	programFor func(*runtimeapi.ContainerConfig) (Program, bool)
	conditions map[string]*runtimeapi.RuntimeCondition
	latency    map[string]time.Duration
	faults     []*Fault
	calls      []*Call
	stalled    chan struct{} // closed when the stall is released; nil if not stalled
	lose       int           // number of events to be dropped
	script     EventScript   // nil: every event is delivered once, at once
	addresses  int           // number of assigned pod addresses
	breakage   *breakage

	done    chan struct{}  // closed by Close
	running sync.WaitGroup // exits and name releases in progress
}

// serving is one run of the runtime's process, between two restarts.
type serving struct {
	server   *grpc.Server
	listener *bufconn.Listener
	events   *eventQueue
	stopped  chan struct{} // closed when this run terminates
	finished sync.WaitGroup
}

// New returns a runtime that is not serving yet.
func New(opts ...Option) *Runtime {
	r := &Runtime{
		config:     defaultConfig(),
		names:      map[string]string{},
		sandboxes:  newShelf[*sandbox](),
		addressed:  map[string]*sandbox{},
		containers: newShelf[*container](),
		images:     map[string]*image{},
		registry:   map[string]RegistryImage{},
		programs:   map[string]Program{},
		latency:    map[string]time.Duration{},
		conditions: map[string]*runtimeapi.RuntimeCondition{},
		breakage:   &breakage{done: make(chan struct{})},
		done:       make(chan struct{}),
	}
	for _, condition := range []string{runtimeapi.RuntimeReady, runtimeapi.NetworkReady} {
		r.conditions[condition] = &runtimeapi.RuntimeCondition{Type: condition, Status: true}
	}
	// containerd has a condition that is false on hosts with anything deprecated, such as cgroup
	// v1; it is irrelevant to agents.
	r.conditions[deprecations] = &runtimeapi.RuntimeCondition{Type: deprecations, Reason: "ContainerdHasDeprecationWarnings", Message: "{}"}
	for _, opt := range opts {
		opt(r)
	}
	return r
}

// Start returns a serving runtime that is closed at the end of the test, or of the bubble it was
// started in.
func Start(t testing.TB, opts ...Option) *Runtime {
	t.Helper()
	r := New(opts...)
	if err := r.Serve(); err != nil {
		t.Fatalf("start the fake runtime: %v", err)
	}
	t.Cleanup(r.Close)
	return r
}

// Serve makes the runtime accept connections and returns at once. It fails if the runtime is
// serving already or closed.
func (r *Runtime) Serve() error {
	s := &serving{
		listener: bufconn.Listen(connBuffer),
		events:   newEventQueue(),
		stopped:  make(chan struct{}),
	}
	s.server = grpc.NewServer(
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			return r.intercept(ctx, s, req, info, handler)
		}),
	)
	runtimeapi.RegisterRuntimeServiceServer(s.server, &runtimeService{Runtime: r, serving: s})
	runtimeapi.RegisterImageServiceServer(s.server, &imageService{Runtime: r})
	if r.config.withTasks {
		tasksapi.RegisterTasksServer(s.server, &taskService{Runtime: r, serving: s})
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return fmt.Errorf("serve: the runtime is closed")
	case r.serving != nil:
		return fmt.Errorf("serve: the runtime is serving already")
	}
	r.serving = s
	for _, c := range r.containers.all {
		if c.unseen { // the runtime detects the exit now
			c.unseen = false
			c.finishedAt = time.Now()
		}
	}
	s.finished.Go(func() { s.events.run() })
	s.finished.Go(func() { _ = s.server.Serve(s.listener) }) // fails only when the listener is closed
	return nil
}

// Dialer returns the function for grpc.WithContextDialer. The address is ignored. Dialling fails
// while the runtime is down.
func (r *Runtime) Dialer() func(ctx context.Context, addr string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		r.mu.Lock()
		s := r.serving
		r.mu.Unlock()
		if s == nil {
			return nil, &net.OpError{Op: "dial", Net: "bufconn", Err: fmt.Errorf("connect %s: connection refused", addr)}
		}
		return s.listener.DialContext(ctx)
	}
}

// Connect returns a connection to the runtime that is closed at the end of the test.
func (r *Runtime) Connect(t testing.TB, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///critest", append([]grpc.DialOption{
		grpc.WithContextDialer(r.Dialer()),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	}, opts...)...)
	if err != nil {
		t.Fatalf("connect to the fake runtime: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Down stops the runtime's process: connections break, active calls terminate, undelivered events
// and name reservations of unfinished calls are lost. Containers keep running and may exit, without
// an event or recorded exit code. Idempotent.
func (r *Runtime) Down() {
	r.mu.Lock()
	s := r.serving
	r.serving = nil
	r.mu.Unlock()
	if s == nil {
		return
	}
	close(s.stopped)
	s.events.close()
	s.server.Stop()
	s.finished.Wait()
	r.releaseUnusedNames()
}

// Restart restarts the runtime's process: Down, and after the given time Serve, with the
// containers' current states.
func (r *Runtime) Restart(down time.Duration) error {
	r.Down()
	timer := time.NewTimer(down)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.done:
	}
	return r.Serve()
}

// Close stops everything and returns when no goroutine of the runtime is left. Idempotent.
func (r *Runtime) Close() {
	r.mu.Lock()
	first := !r.closed
	r.closed = true
	r.mu.Unlock()
	if first {
		close(r.done)
	}
	r.Down()
	r.mu.Lock()
	for _, c := range r.containers.all {
		c.disarm()
		c.closeLog()
	}
	r.mu.Unlock()
	r.running.Wait()
}

// begin registers work that Close waits for; it returns false if the runtime is closed.
func (r *Runtime) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.running.Add(1)
	return true
}

// newID returns a new ID of 64 hex digits. IDs are deterministic. The caller holds the lock.
func (r *Runtime) newID() string {
	r.ids++
	sum := sha256.Sum256(fmt.Appendf(nil, "critest %d", r.ids))
	return hex.EncodeToString(sum[:])
}

// reserve reserves a name for an ID, or returns an error that names the holder, with containerd's
// hint for the kind. The caller holds the lock.
func (r *Runtime) reserve(kind, name, id, hint string) error {
	if holder, taken := r.names[name]; taken {
		return status.Errorf(codes.FailedPrecondition, "failed to reserve %s name %q%s: name %q is reserved for %q", kind, name, hint, name, holder)
	}
	r.names[name] = id
	return nil
}

// releaseLater releases a name after NameReservation, like the cleanup of a cancelled call.
func (r *Runtime) releaseLater(name, id string) {
	if !r.begin() {
		return
	}
	go func() {
		defer r.running.Done()
		timer := time.NewTimer(NameReservation)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.done:
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.names[name] == id {
			delete(r.names, name)
		}
	}()
}

// releaseUnusedNames drops the reservations that belong to no sandbox or container.
func (r *Runtime) releaseUnusedNames() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, id := range r.names {
		if r.sandboxes.all[id] == nil && r.containers.all[id] == nil {
			delete(r.names, name)
		}
	}
}
