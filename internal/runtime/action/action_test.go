package action

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/record/events/messagestest"
	"berth/internal/runtime/cri"
)

func TestProbeExec(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := []byte(strings.Repeat("x", maxOutput))
		var req *runtimeapi.ExecSyncRequest
		for _, tc := range []struct {
			name string
			do   executor
			want Result
		}{
			{"exit 0", func(context.Context, *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
				return &runtimeapi.ExecSyncResponse{Stdout: []byte("out "), Stderr: []byte("err")}, nil
			}, Result{Success, "out err"}},
			{"exit 3", func(context.Context, *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
				return &runtimeapi.ExecSyncResponse{Stdout: []byte("no"), ExitCode: 3}, nil
			}, Result{Failure, "no"}},
			{"long output", func(context.Context, *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
				return &runtimeapi.ExecSyncResponse{Stdout: long, Stderr: long, ExitCode: 1}, nil
			}, Result{Failure, string(long)}},
			{"time-out", func(context.Context, *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
				return nil, fmt.Errorf("exec: %w", cri.ErrTimeout)
			}, Result{Failure, `command "cat hello world $(IP) $(NO)" timed out after 2s`}},
			{"a runtime that waits for more than the command", func(ctx context.Context, _ *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
				<-ctx.Done()
				return nil, cri.ErrTimeout
			}, Result{Failure, `command "cat hello world $(IP) $(NO)" timed out after 2s`}},
			{"runtime error", func(context.Context, *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
				return nil, errors.New("runtime is down")
			}, Result{Unknown, "runtime is down"}},
		} {
			a := New(Config{CRI: executor(func(ctx context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
				req = r
				return tc.do(ctx, r)
			})})
			began := time.Now()
			got := a.Probe(t.Context(), target, probeOf(v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"cat", "hello $(WHO)", "$(IP)", "$(NO)"}}}))
			if d := time.Since(began); d > 2*time.Second+execSlack {
				t.Errorf("%s: took %s", tc.name, d)
			}
			messagestest.Saw("probe", "-", got.Output)
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("%s: %s", tc.name, d)
			}
			if req.ContainerId != "c1" || req.Timeout != 2 {
				t.Errorf("%s: asked for %v", tc.name, req)
			}
		}
	})
}

func TestHookExec(t *testing.T) {
	var req *runtimeapi.ExecSyncRequest
	run := func(resp *runtimeapi.ExecSyncResponse, err error) Result {
		a := New(Config{CRI: executor(func(_ context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
			req = r
			return resp, err
		})})
		return a.Hook(t.Context(), target, &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"sh", "-c", "kill $$ $(WHO)"}}})
	}
	if got := run(&runtimeapi.ExecSyncResponse{Stdout: []byte("fine")}, nil); got != (Result{Success, "fine"}) {
		t.Error(got)
	}
	if d := cmp.Diff([]string{"sh", "-c", "kill $$ $(WHO)"}, req.Cmd); d != "" || req.Timeout != 0 {
		t.Errorf("asked for %v: a hook's command has no time-out and is not expanded", req)
	}
	if got := run(&runtimeapi.ExecSyncResponse{ExitCode: 7}, nil); got != (Result{Failure, `command "sh -c kill $$ $(WHO)" exited with 7`}) {
		t.Errorf("without a word: %+v", got)
	}
	if got := run(&runtimeapi.ExecSyncResponse{Stderr: []byte("oh"), ExitCode: 7}, nil); got != (Result{Failure, `command "sh -c kill $$ $(WHO)" exited with 7: oh`}) {
		t.Error(got)
	}
	if got := run(nil, errors.New("no such container")); got != (Result{Failure, "no such container"}) {
		t.Error(got)
	}
}

func TestHookSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		a := New(Config{Metrics: registry})
		sleep := func(ctx context.Context, s int64) Result {
			return a.Hook(ctx, target, &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: s}})
		}
		began := time.Now()
		if got := sleep(t.Context(), 0); got.Outcome != Success {
			t.Error(got)
		}
		took(t, began, 0)
		if got := sleep(t.Context(), 7); got.Outcome != Success {
			t.Error(got)
		}
		took(t, began, 7*time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if got := sleep(ctx, 60); got != (Result{Failure, "sleep of 1m0s was ended after 3s"}) || metricstest.Values(t, registry)["kubelet_sleep_action_terminated_early_total"] != 1 {
			t.Error(got)
		}
		took(t, began, 10*time.Second)
	})
}

func TestHandlersThatAreNone(t *testing.T) {
	a := New(Config{})
	if got := a.Hook(t.Context(), target, &v1.LifecycleHandler{TCPSocket: &v1.TCPSocketAction{}}); got.Outcome != Failure || !strings.Contains(got.Output, "tcpSocket") {
		t.Error(got)
	}
	if got := a.Hook(t.Context(), target, &v1.LifecycleHandler{}); got.Outcome != Failure {
		t.Error(got)
	}
	if got := a.Probe(t.Context(), target, &v1.Probe{}); got.Outcome != Unknown {
		t.Error(got)
	}
}

func TestProbeTCP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := pipes{}
		net.listen(t, "10.0.0.1:82") // nobody accepts
		for port, l := range map[string]bool{"10.0.0.1:80": true, "10.7.7.7:81": true} {
			if l {
				accept(t, net, port)
			}
		}
		a := New(Config{Dial: net.dial})
		for _, tc := range []struct {
			name string
			tcp  v1.TCPSocketAction
			want Result
		}{
			{"open", v1.TCPSocketAction{Port: intstr.FromInt32(80)}, Result{Success, ""}},
			{"by name, elsewhere", v1.TCPSocketAction{Host: "10.7.7.7", Port: intstr.FromString("admin")}, Result{Success, ""}},
			{"refused", v1.TCPSocketAction{Port: intstr.FromInt32(9)}, Result{Failure, "dial tcp: connection refused"}},
			{"unknown name", v1.TCPSocketAction{Port: intstr.FromString("nope")}, Result{Unknown, `container "web" has no port that is named "nope"`}},
			{"silent", v1.TCPSocketAction{Port: intstr.FromInt32(82)}, Result{Failure, "dial tcp: context deadline exceeded"}},
		} {
			began := time.Now()
			got := a.Probe(t.Context(), target, probeOf(v1.ProbeHandler{TCPSocket: &tc.tcp}))
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("%s: %s", tc.name, d)
			}
			if tc.name == "silent" {
				took(t, began, 2*time.Second)
			}
		}
		noIP := target
		noIP.PodIP = ""
		if got := a.Probe(t.Context(), noIP, probeOf(v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(80)}})); got.Outcome != Unknown {
			t.Errorf("without an address: %v", got)
		}
	})
}

// accept takes the connections to an address and waits for their end.
func accept(t *testing.T, p pipes, address string) {
	t.Helper()
	l := p.listen(t, address)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("the probe sent something")
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
}

// Connections over TCP are closed with a linger of a second.
func TestLinger(t *testing.T) {
	set := -1
	a := New(Config{Dial: func(context.Context, string, string) (net.Conn, error) { return &lingerer{set: &set}, nil }})
	if got := a.Probe(t.Context(), target, probeOf(v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(80)}})); got.Outcome != Success || set != 1 {
		t.Errorf("got %v, linger %d", got, set)
	}
	set = -2
	if got := a.Probe(t.Context(), target, probeOf(v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(80)}})); got.Outcome != Failure {
		t.Errorf("a connection that refuses: %v", got)
	}
}

type lingerer struct {
	net.Conn
	set *int
}

func (l *lingerer) SetLinger(seconds int) error {
	if *l.set == -2 {
		return os.ErrInvalid
	}
	*l.set = seconds
	return nil
}

func (*lingerer) Close() error { return nil }

func TestProbeGRPC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var agent atomic.Value // string: the user agent of the last call
		observe := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			agent.Store(strings.Join(md.Get("user-agent"), " "))
			switch req.(*healthpb.HealthCheckRequest).Service {
			case "slow":
				<-ctx.Done()
			case "broken":
				return nil, status.Error(codes.Internal, "broken")
			}
			return next(ctx, req)
		}
		net := pipes{}
		healthy := health.NewServer()
		healthy.SetServingStatus("down", healthpb.HealthCheckResponse_NOT_SERVING)
		for address, register := range map[string]bool{"10.0.0.1:80": true, "10.0.0.1:81": false} {
			l := net.listen(t, address)
			s := grpc.NewServer(grpc.UnaryInterceptor(observe))
			if register {
				healthpb.RegisterHealthServer(s, healthy)
			}
			done := make(chan error, 1)
			go func() { done <- s.Serve(l) }()
			t.Cleanup(func() {
				s.Stop()
				if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
					t.Error(err)
				}
			})
		}
		net.listen(t, "10.0.0.1:82") // nobody accepts
		a := New(Config{Dial: net.dial})
		for _, tc := range []struct {
			name, service string
			port          int32
			want          Outcome
			text          string
		}{
			{"serving", "", 80, Success, "service healthy"},
			{"not serving", "down", 80, Failure, `service unhealthy (responded with "NOT_SERVING")`},
			{"unknown service", "nope", 80, Failure, "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service"},
			{"no health service", "", 81, Failure, "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service grpc.health.v1.Health"},
			{"slow", "slow", 80, Failure, "timeout: health rpc did not complete within 2s"},
			{"broken", "broken", 80, Failure, "error: health rpc probe failed: rpc error: code = Internal desc = broken"},
			{"refused", "", 9, Failure, `error: failed to connect service "10.0.0.1:9": `},
			{"silent", "", 82, Failure, `timeout: failed to connect service "10.0.0.1:82" within 2s: `},
		} {
			began := time.Now()
			got := a.Probe(t.Context(), target, probeOf(v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: tc.port, Service: &tc.service}}))
			messagestest.Saw("probe", "-", got.Output)
			if got.Outcome != tc.want || !strings.HasPrefix(got.Output, tc.text) {
				t.Errorf("%s: got %v, want %s %q", tc.name, got, tc.want, tc.text)
			}
			if tc.name == "slow" || tc.name == "silent" {
				took(t, began, 2*time.Second)
			}
		}
		if a, _ := agent.Load().(string); !strings.HasPrefix(a, "kube-probe/1.") {
			t.Errorf("user agent %q", a)
		}
	})
}

// A probe that nobody waits for any more says nothing about the container, and a time-out that is
// not set is a second.
func TestProbeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := pipes{}
		net.listen(t, "10.0.0.1:80")
		a := New(Config{Dial: net.dial})
		p := probeOf(v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(80)}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if got := a.Probe(ctx, target, p); got.Outcome != Unknown {
			t.Errorf("got %v", got)
		}
		p.TimeoutSeconds = 0
		began := time.Now()
		if got := a.Probe(t.Context(), target, p); got.Outcome != Failure {
			t.Errorf("got %v", got)
		}
		took(t, began, time.Second)
	})
}
