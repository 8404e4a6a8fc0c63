package action

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pipes is a network in memory: whoever dials the address of a listener gets a pipe to it. Others
// are refused.
type pipes map[string]chan net.Conn

var errRefused = errors.New("connection refused")

func (p pipes) dial(ctx context.Context, network, address string) (net.Conn, error) {
	to, ok := p[address]
	if !ok {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errRefused}
	}
	client, server := net.Pipe()
	select {
	case to <- server:
		return client, nil
	case <-ctx.Done():
		return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
	}
}

// listen opens an address until the test ends. Without an Accept, dialling it hangs.
func (p pipes) listen(t *testing.T, address string) net.Listener {
	t.Helper()
	p[address] = make(chan net.Conn)
	return &listener{conns: p[address], closed: make(chan struct{})}
}

type listener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error   { close(l.closed); return nil }
func (l *listener) Addr() net.Addr { return &net.TCPAddr{} }

// serve answers HTTP at an address until the test ends.
func (p pipes) serve(t *testing.T, address string, h http.HandlerFunc) {
	t.Helper()
	l := p.listen(t, address)
	s := &http.Server{Handler: h}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}

// executor answers ExecSync by a function.
type executor func(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error)

func (e executor) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return e(ctx, req)
}

var target = Target{ID: "c1", PodIP: "10.0.0.1", Container: &v1.Container{
	Name:  "web",
	Ports: []v1.ContainerPort{{Name: "http", ContainerPort: 80}, {Name: "admin", ContainerPort: 81}},
	Env:   []v1.EnvVar{{Name: "WHO", Value: "world"}, {Name: "IP", ValueFrom: &v1.EnvVarSource{}}},
}}

func probeOf(h v1.ProbeHandler) *v1.Probe { return &v1.Probe{ProbeHandler: h, TimeoutSeconds: 2} }

func httpGet(mods ...func(*v1.HTTPGetAction)) *v1.HTTPGetAction {
	g := &v1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(80)}
	for _, m := range mods {
		m(g)
	}
	return g
}

// took asserts how much virtual time has passed.
func took(t *testing.T, began time.Time, want time.Duration) {
	t.Helper()
	if d := time.Since(began); d != want {
		t.Errorf("took %s, want %s", d, want)
	}
}
