package kuberuntime

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/cri/critest"
)

// errBroken is an error of the runtime that does not pass.
var errBroken = status.Error(codes.Unknown, "shim is stuck")

// Whatever the runtime fails at, a container of a pod that ends has ended when the grace period is
// over, and a little more.
func TestNoContainerRefusesToEnd(t *testing.T) {
	const grace = 30 * time.Second
	deaf := critest.Program{IgnoresStop: true}
	always := func(method string) critest.Fault { return critest.Fault{Method: method, Times: -1, Err: errBroken} }
	hangs := func(method string) critest.Fault { return critest.Fault{Method: method, Times: -1, Hang: true} }
	forgotten := func(method string) critest.Fault {
		return critest.Fault{Method: method, Times: -1, Err: status.Error(codes.NotFound, "not found")}
	}
	patient := critest.Fault{Method: "StopContainer", Times: -1, Err: errBroken, Match: func(req any) bool {
		return req.(*runtimeapi.StopContainerRequest).Timeout > 0
	}}
	for _, tc := range []struct {
		name    string
		options []critest.Option
		program critest.Program
		faults  []critest.Fault
		do      func(*bench) // before the end
		want    time.Duration
		code    int32
	}{
		{name: "bad signal", program: critest.Program{NoStopSignal: "SIGFOO; rm"}},
		{name: "bad signal, its grace is used", program: critest.Program{NoStopSignal: "0", StopDelay: 20 * time.Second}, want: 20 * time.Second},
		{name: "bad signal, deaf", program: critest.Program{NoStopSignal: "SIGFOO", IgnoresStop: true}, want: grace, code: 137},
		{name: "bad signal, another runtime", options: []critest.Option{critest.WithoutTasks()}, program: critest.Program{NoStopSignal: "SIGFOO"}, code: 137},
		{name: "bad signal, task service fails", program: critest.Program{NoStopSignal: "SIGFOO"}, faults: []critest.Fault{always("Kill")}, code: 137},
		{name: "an error that passes", faults: []critest.Fault{{Method: "StopContainer", Times: 3, Err: errBroken}}, want: 15 * time.Second},
		{name: "an error each time, but for force", faults: []critest.Fault{patient}, want: grace, code: 137},
		{name: "an error each time", program: deaf, faults: []critest.Fault{always("StopContainer")}, want: grace, code: 137},
		{name: "no answer", faults: []critest.Fault{hangs("StopContainer")}, want: grace + patience + forceLimit, code: 137},
		{
			name: "an error each time, another runtime", options: []critest.Option{critest.WithoutTasks()}, faults: []critest.Fault{always("StopContainer")},
			want: grace, code: 137,
		},
		{
			name: "no answer at all", faults: []critest.Fault{hangs("StopContainer"), hangs("Kill")},
			want: grace + patience + 2*forceLimit, code: 137,
		},
		{name: "forgotten by the runtime, but runs on", faults: []critest.Fault{forgotten("StopContainer"), forgotten("StopPodSandbox")}, code: 137},
		{name: "unknown state", do: func(b *bench) { b.fake.MakeUnknown("a") }, faults: []critest.Fault{patient}, want: minGrace, code: 255},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, tc.options...)
				b.fake.Programs.Set("a", tc.program)
				p := podOf(v1.RestartPolicyAlways, "a")
				b.run(p)
				if tc.do != nil {
					tc.do(b)
				}
				for _, f := range tc.faults {
					b.fake.Calls.Inject(f)
				}
				b.kill(p, grace)
				if took := time.Since(b.began); took != tc.want {
					t.Errorf("took %s, want %s", took, tc.want)
				}
				if c := b.observe().FindContainer("a"); c.State != pod.StateExited || c.ExitCode != tc.code {
					t.Errorf("the container is %s, exit code %d, want %d", c.State, c.ExitCode, tc.code)
				}
				told := slices.ContainsFunc(b.events.take(), func(e string) bool {
					return strings.HasPrefix(e, "Warning InvalidStopSignal a: ") && strings.Contains(e, tc.program.NoStopSignal)
				})
				if told != (tc.program.NoStopSignal != "") {
					t.Errorf("told of the signal: %t", told)
				}
			})
		})
	}
}

// A container of a pod that goes on is ended by the same means.
func TestKillContainerForced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.fake.Programs.Set("a", critest.Program{NoStopSignal: "SIGFOO", IgnoresStop: true})
		p := podOf(v1.RestartPolicyAlways, "a", "b")
		b.run(p)
		b.fake.Calls.Inject(critest.Fault{Method: "StopContainer", Times: -1, Err: status.Error(codes.Unknown, `failed to parse stop signal "SIGFOO"`)})
		if err := b.killer.killContainer(t.Context(), p, b.observe().FindContainer("a"), "it is to end", 7*time.Second); err != nil {
			t.Fatal(err)
		}
		s := b.observe()
		if a, other := s.FindContainer("a"), s.FindContainer("b"); a.State != pod.StateExited || other.State != pod.StateRunning {
			t.Errorf("a is %s, b is %s", a.State, other.State)
		}
		if took := time.Since(b.began); took != 7*time.Second {
			t.Errorf("took %s", took)
		}
	})
}

// What no means ends is an error that names each, and the sandbox stays until all containers have
// ended.
func TestKillPodFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := podOf(v1.RestartPolicyAlways, "a", "b")
		b.run(p)
		b.killer.cgroups = killing{fake: b.fake, failure: errors.New("process 7 (dd) in state D")}
		for _, method := range []string{"StopContainer", "Kill"} {
			b.fake.Calls.Inject(critest.Fault{Method: method, Times: -1, Err: errBroken})
		}
		err := b.KillPod(t.Context(), p, b.observe(), time.Second)
		for _, part := range []string{`stop container "a"`, `stop container "b"`, "shim is stuck", "kill by its cgroup: process 7 (dd) in state D"} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("got %v, want %q in it", err, part)
			}
		}
		if n := b.fake.Calls.Count("StopPodSandbox"); n != 0 {
			t.Errorf("%d sandboxes were stopped", n)
		}
	})
}

// A runtime that is down forces nothing: it stops the container when it is back.
func TestRuntimeDownForcesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := podOf(v1.RestartPolicyAlways, "a")
		b.run(p)
		observed := b.observe()
		b.fake.Calls.Fail("StopContainer", 1, status.Error(codes.Unavailable, "closing"))
		if err := b.KillPod(t.Context(), p, observed, time.Second); !errors.Is(err, cri.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		if c := b.observe().FindContainer("a"); c.State != pod.StateRunning {
			t.Errorf("the container is %s", c.State)
		}
	})
}

// A pass that ends early, for the agent leaves or the grace period became shorter, forces nothing.
func TestEndedPassForcesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := podOf(v1.RestartPolicyAlways, "a")
		b.run(p)
		b.fake.Calls.Inject(critest.Fault{Method: "StopContainer", Times: -1, Err: errBroken})
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		if err := b.KillPod(ctx, p, b.observe(), time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if d := cmp.Diff([]string{"0s stop a 60", "5s stop a 55"}, b.calls()); d != "" {
			t.Error(d)
		}
	})
}

// A sandbox that cannot be stopped, for its network cannot be taken down, keeps no process of a pod
// that ends, and its end from nobody. A pod that goes on waits.
func TestSandboxThatCannotBeStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := podOf(v1.RestartPolicyAlways, "a")
		b.run(p)
		b.fake.Calls.Fail("StopPodSandbox", -1, status.Error(codes.Unknown, "failed to destroy network for sandbox"))
		if err := b.killer.restartPod(t.Context(), p, b.observe(), time.Second); err == nil || !strings.Contains(err.Error(), "failed to destroy network") {
			t.Errorf("a pod that goes on: %v", err)
		}
		b.kill(p, time.Second)
		if sb := b.observe().ReadySandbox(); sb != nil {
			t.Errorf("sandbox %s has a process", sb.ID)
		}
		if err := b.RemovePod(t.Context(), b.observe(), WithLogs); err == nil {
			t.Error("its removal does not fail")
		}
		b.fake.Calls.ClearFaults()
		if err := b.RemovePod(t.Context(), b.observe(), WithLogs); err != nil {
			t.Error(err)
		}
		if left := b.fake.Sandboxes(); len(left) > 0 {
			t.Errorf("left %v", left)
		}
	})
}
