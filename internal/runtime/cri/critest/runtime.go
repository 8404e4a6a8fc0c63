package critest

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
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
	Calls    *Calls
	Events   *Events
	Programs *Programs
	Images   *Images

	config    config
	life      *lifetime
	processes processes

	mu         sync.Mutex // guards the fields below, and the state of Events, Programs and Images
	serving    *serving   // nil while the runtime is down
	names      *names
	sandboxes  shelf[*sandbox]
	containers shelf[*container]
	conditions map[string]*runtimeapi.RuntimeCondition
	addressed  map[string]*sandbox // by IP
	addresses  int                 // number of assigned pod addresses
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
		Calls:      &Calls{latency: map[string]time.Duration{}},
		config:     defaultConfig(),
		sandboxes:  newShelf[*sandbox](),
		addressed:  map[string]*sandbox{},
		containers: newShelf[*container](),
		conditions: map[string]*runtimeapi.RuntimeCondition{},
	}
	r.life = &lifetime{mu: &r.mu, done: make(chan struct{})}
	r.names = &names{mu: &r.mu, life: r.life, holders: map[string]string{}}
	r.Events = &Events{mu: &r.mu, life: r.life, offered: true, breakage: &breakage{done: make(chan struct{})}}
	r.Programs = &Programs{mu: &r.mu, byReference: map[string]Program{}}
	r.Images = &Images{mu: &r.mu, byID: map[string]*image{}, registry: map[string]RegistryImage{}}
	r.processes = processes{mu: &r.mu, life: r.life, events: r.Events}
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
			return r.Calls.intercept(ctx, s, req, info, handler)
		}),
	)
	runtimeapi.RegisterRuntimeServiceServer(s.server, &runtimeService{runtime: r, serving: s})
	runtimeapi.RegisterImageServiceServer(s.server, &imageService{images: r.Images, done: r.life.done})
	if r.config.withTasks {
		tasksapi.RegisterTasksServer(s.server, &taskService{runtime: r, serving: s})
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.life.closed:
		return fmt.Errorf("serve: the runtime is closed")
	case r.serving != nil:
		return fmt.Errorf("serve: the runtime is serving already")
	}
	r.serving, r.Events.queue = s, s.events
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
	r.serving, r.Events.queue = nil, nil
	r.mu.Unlock()
	if s == nil {
		return
	}
	close(s.stopped)
	s.events.close()
	s.server.Stop()
	s.finished.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names.releaseUnused(func(id string) bool { return r.sandboxes.all[id] != nil || r.containers.all[id] != nil })
}

// Restart restarts the runtime's process: Down, and after the given time Serve, with the
// containers' current states.
func (r *Runtime) Restart(down time.Duration) error {
	r.Down()
	timer := time.NewTimer(down)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.life.done:
	}
	return r.Serve()
}

// Close stops everything and returns when no goroutine of the runtime is left. Idempotent.
func (r *Runtime) Close() {
	r.mu.Lock()
	first := !r.life.closed
	r.life.closed = true
	r.mu.Unlock()
	if first {
		close(r.life.done)
	}
	r.Down()
	r.mu.Lock()
	for _, c := range r.containers.all {
		c.disarm()
		c.closeLog()
	}
	r.mu.Unlock()
	r.life.running.Wait()
}
