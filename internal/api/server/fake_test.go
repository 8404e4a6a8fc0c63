package server_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/api/server"
	"berth/internal/health"
	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/record/journal"
	"berth/internal/source/manifest"
)

// node is an agent as the server sees it.
type node struct {
	journal *journal.Journal
	unwell  error

	mu       sync.Mutex
	pods     map[pod.UID]*v1.Pod
	watchers map[*pod.Inbox[pod.UID]]bool
	problems []manifest.Problem
	logs     map[pod.ContainerID]string
	stops    []server.StopScope
}

func newNode(pods ...*v1.Pod) *node {
	n := &node{
		journal:  journal.New(slog.New(slog.DiscardHandler)),
		pods:     map[pod.UID]*v1.Pod{},
		watchers: map[*pod.Inbox[pod.UID]]bool{},
		logs:     map[pod.ContainerID]string{},
	}
	for _, p := range pods {
		n.pods[p.UID] = p
	}
	return n
}

func (n *node) handlers() server.Handlers {
	return server.Handlers{
		Pods: server.Pods{
			List: n.list,
			Get: func(uid pod.UID) (*v1.Pod, bool) {
				n.mu.Lock()
				defer n.mu.Unlock()
				p, ok := n.pods[uid]
				return p, ok
			},
			Subscribe: n.subscribe,
		},
		Logs: func(_ pod.UID, id pod.ContainerID) (string, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			path, ok := n.logs[id]
			if !ok {
				return "", fmt.Errorf("container %s: %w", id, fs.ErrNotExist)
			}
			return path, nil
		},
		Explain: server.Explain{
			Problems: func() []manifest.Problem {
				n.mu.Lock()
				defer n.mu.Unlock()
				return n.problems
			},
			Journal: n.journal,
		},
		Agent: server.Agent{
			Version: func() server.Version {
				return server.Version{Version: "v1", PID: 7, NodeName: "node", RuntimeName: "fake"}
			},
			Stop: func(s server.StopScope) {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.stops = append(n.stops, s)
			},
		},
		Health: server.Health{Check: func() error { return n.unwell }, Conditions: func() []health.State { return nil }},
	}
}

func (n *node) list() []*v1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*v1.Pod
	for _, p := range n.pods {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *v1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func (n *node) subscribe() (*pod.Inbox[pod.UID], func()) {
	in := pod.NewInbox[pod.UID]()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.watchers[in] = true
	return in, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.watchers, in)
	}
}

func (n *node) subscribers() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.watchers)
}

// set adds or changes a pod.
func (n *node) set(p *v1.Pod) {
	n.mu.Lock()
	n.pods[p.UID] = p
	n.mu.Unlock()
	n.tell(p.UID)
}

func (n *node) tell(uid pod.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for in := range n.watchers {
		in.Put(uid)
	}
}

// pipeListener is a listener in memory, which a bubble needs.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (l *pipeListener) dial(ctx context.Context) (net.Conn, error) { return l.dialFrom(ctx, "") }

// dialFrom connects from a remote address like 10.0.0.1:1; "": the pipe's own.
func (l *pipeListener) dialFrom(ctx context.Context, remote string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	if remote != "" {
		theirs = connFrom{theirs, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(remote))}
	}
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// connFrom is a connection from somewhere.
type connFrom struct {
	net.Conn
	remote net.Addr
}

func (c connFrom) RemoteAddr() net.Addr { return c.remote }

// api is a running server and a client of it.
type api struct {
	t      *testing.T
	listen *pipeListener
	http   *http.Client
	ended  chan error
	stop   context.CancelFunc
}

// serve runs a server over the handlers until the test ends.
func serve(t *testing.T, h server.Handlers) *api {
	t.Helper()
	return serveWith(t, server.Config{Handlers: h})
}

// serveWith is serve for a server that needs more than handlers.
func serveWith(t *testing.T, cfg server.Config) *api {
	t.Helper()
	a := &api{t: t, listen: newPipeListener(), ended: make(chan error, 1)}
	cfg.Listen = func() (net.Listener, error) { return a.listen, nil }
	cfg.Log = slog.New(slog.DiscardHandler)
	s, err := server.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	a.stop = stop
	go func() { a.ended <- s.Run(ctx) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return a.listen.dial(ctx) }}
	a.http = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		stop()
		if err := <-a.ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return a
}

// do sends a request and returns the answer, whose body the test closes.
func (a *api) do(method, path string, body io.Reader) *http.Response {
	a.t.Helper()
	req, err := http.NewRequestWithContext(a.t.Context(), method, "http://node"+path, body)
	if err != nil {
		a.t.Fatal(err)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		a.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp
}

// answer is a complete answer.
type answer struct {
	Status int
	Body   string
}

func (a *api) get(path string) answer { return a.ask(http.MethodGet, path, nil) }

func (a *api) ask(method, path string, body io.Reader) answer {
	a.t.Helper()
	resp := a.do(method, path, body)
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		a.t.Fatal(err)
	}
	messagestest.Saw("http", strconv.Itoa(resp.StatusCode), string(text))
	return answer{resp.StatusCode, string(text)}
}

// stream opens a stream, the removal of images, which goes on until the client or the server ends
// it.
func (a *api) stream() (resp <-chan answer, end func()) {
	a.t.Helper()
	ctx, cancel := context.WithCancel(a.t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://node"+server.PathPruneImages, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	out := make(chan answer, 1)
	go func() {
		resp, err := a.http.Do(req)
		if err != nil {
			out <- answer{Body: err.Error()}
			return
		}
		text, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			text = []byte(err.Error())
		}
		out <- answer{resp.StatusCode, string(text)}
	}()
	return out, cancel
}

// aPod returns a pod with one running container "main", whose ID is the pod's name and its UID.
func aPod(name string, uid pod.UID, phase v1.PodPhase) *v1.Pod {
	id := "fake://" + name + string(uid)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: uid},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main"}, {Name: "late"}}},
		Status: v1.PodStatus{Phase: phase, ContainerStatuses: []v1.ContainerStatus{
			{Name: "main", ContainerID: id, State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Unix(1, 0))}}},
			{Name: "late", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}},
		}},
	}
}
