package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/internal/host/safepath"
	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/cri/critest"
)

func TestPostStartBlocksTheContainersAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.fake.Programs.Set("a", executes(5*time.Second, 0))
		p := withHooks(podOf(v1.RestartPolicyAlways, "a", "b"), "a", execHook("post"), nil)
		res := b.sync(p)
		if d := cmp.Diff([]string{"a", "b"}, res.Started); d != "" {
			t.Error(d)
		}
		want := []string{"0s create a 0", "0s start a", "0s exec post in a", "5s create b 0", "5s start b"}
		if d := cmp.Diff(want, b.calls()); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff([]string{
			"Normal Created a: Container created", "Normal Started a: Container started",
			"Normal Created b: Container created", "Normal Started b: Container started",
		}, b.events.take()); d != "" {
			t.Error(d)
		}
	})
}

func TestFailedPostStart(t *testing.T) {
	for _, tc := range []struct {
		name    string
		hook    *v1.LifecycleHandler
		program critest.Program
		message string
	}{
		{"exit code", execHook("post"), executes(0, 3), `PostStart hook failed: command "post" exited with 3`},
		{"refused", &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt32(9)}}, critest.Forever(), "PostStart hook failed: Get "},
		{"tcpSocket", &v1.LifecycleHandler{TCPSocket: &v1.TCPSocketAction{}}, critest.Forever(), "PostStart hook failed: a tcpSocket is not supported"},
		{"the container ends", sleepHook(60), critest.ExitsAfter(3500*time.Millisecond, 1), "PostStart hook failed: the container has ended: sleep of 1m0s was ended after 4s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.fake.Programs.Set("a", tc.program)
				p := withHooks(podOf(v1.RestartPolicyAlways, "a", "b"), "a", tc.hook, nil)
				p.Spec.TerminationGracePeriodSeconds = seconds(7)
				res := b.sync(p)
				e := res.StartErrors["a"]
				if e.Reason != lifecycle.PostStartHookError || !strings.HasPrefix(e.Message, tc.message) {
					t.Errorf("got %+v", e)
				}
				if !res.Touched || !slices.Equal(res.Started, []string{"b"}) {
					t.Errorf("got %+v: the container was made, and the others start", res)
				}
				events := b.events.take()
				if d := cmp.Diff([]string{
					"Normal Created a: Container created", "Normal Started a: Container started",
					"Warning FailedPostStartHook a: PostStartHook failed", "Normal Killing a: FailedPostStartHook",
				}, events[:4]); d != "" {
					t.Error(d)
				}
				if cs := b.observe().FindContainer("a"); cs.State != pod.StateExited {
					t.Errorf("the container is %s", cs.State)
				}
				if !slices.ContainsFunc(b.calls(), func(s string) bool { return strings.HasSuffix(s, "stop a 7") }) {
					t.Errorf("not stopped within its grace period: %v", b.calls())
				}
			})
		})
	}
}

// A pass that is ended while a postStart hook runs tells nothing and kills nothing: the next one
// ends the pod.
func TestPostStartOfAnEndedPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.fake.Programs.Set("a", executes(time.Hour, 0))
		p := withHooks(podOf(v1.RestartPolicyAlways, "a"), "a", execHook("post"), nil)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(4*time.Second, cancel)
		if _, err := b.trySync(ctx, p); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if d := cmp.Diff([]string{"Normal Created a: Container created", "Normal Started a: Container started"}, b.events.take()); d != "" {
			t.Error(d)
		}
		if got := b.calls(); len(got) != 3 {
			t.Errorf("got %v", got)
		}
	})
}

func TestPreStop(t *testing.T) {
	failed := "Warning FailedPreStopHook a: PreStopHook failed"
	for _, tc := range []struct {
		name    string
		hook    *v1.LifecycleHandler
		program critest.Program
		grace   time.Duration
		want    []string
		events  []string
	}{
		{"its whole seconds are taken from the grace period", execHook("pre"), executes(5500*time.Millisecond, 0), 30 * time.Second, []string{"0s exec pre in a", "5.5s stop a 25"}, nil},
		{"a part of a second is not", execHook("pre"), executes(300*time.Millisecond, 0), 30 * time.Second, []string{"0s exec pre in a", "300ms stop a 30"}, nil},
		{"what is left is no less than two seconds", execHook("pre"), executes(9*time.Second, 0), 10 * time.Second, []string{"0s exec pre in a", "9s stop a 2"}, nil},
		{"it is not waited for longer than the grace period", execHook("pre"), executes(time.Hour, 0), 10 * time.Second, []string{"0s exec pre in a", "10s stop a 2"}, []string{failed}},
		{"a failure does not matter", execHook("pre"), executes(0, 1), 10 * time.Second, []string{"0s exec pre in a", "0s stop a 10"}, []string{failed}},
		{"none without a grace period", execHook("pre"), executes(0, 0), 0, []string{"0s stop a 2"}, nil},
		{"sleep", sleepHook(4), critest.Forever(), 10 * time.Second, []string{"4s stop a 6"}, nil},
		{"no sleep at all", sleepHook(0), critest.Forever(), 10 * time.Second, []string{"0s stop a 10"}, nil},
		{"the container ends while it sleeps", sleepHook(60), critest.ExitsAfter(3500*time.Millisecond, 0), 90 * time.Second, []string{"4s stop a 86"}, []string{failed}},
		{"tcpSocket", &v1.LifecycleHandler{TCPSocket: &v1.TCPSocketAction{}}, critest.Forever(), 10 * time.Second, []string{"0s stop a 10"}, []string{failed}},
		{"http, whatever it answers", &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt32(80)}}, critest.Forever(), 10 * time.Second, []string{"0s stop a 10"}, nil},
		{
			"http that never answers",
			&v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt32(80), HTTPHeaders: []v1.HTTPHeader{{Name: "Hang", Value: "1"}}}},
			critest.Forever(), 10 * time.Second,
			[]string{"10s stop a 2"},
			[]string{failed},
		},
		{
			"https answered by http", &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt32(80), Scheme: v1.URISchemeHTTPS}}, critest.Forever(), 10 * time.Second,
			[]string{"0s stop a 10"},
			[]string{"Warning LifecycleHTTPFallback a: request to HTTPS lifecycle hook got HTTP response, retry with HTTP succeeded"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.fake.Programs.Set("a", tc.program)
				p := withHooks(podOf(v1.RestartPolicyAlways, "a"), "a", nil, tc.hook)
				b.run(p)
				b.kill(p, tc.grace)
				if d := cmp.Diff(tc.want, b.calls()); d != "" {
					t.Error(d)
				}
				if d := cmp.Diff(append([]string{"Normal Killing a: Stopping container a"}, tc.events...), b.events.take()); d != "" {
					t.Error(d)
				}
			})
		})
	}
}

// A hook that takes too long goes on while its container is stopped, and ends with it.
func TestPreStopEndsWithItsContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		program := executes(time.Hour, 0)
		program.IgnoresStop = true
		b.fake.Programs.Set("a", program)
		b.fake.Programs.Set("sidecar-1", program)
		p := withHooks(podOf(v1.RestartPolicyAlways, "sidecar-1", "a"), "a", nil, execHook("pre"))
		withHooks(p, "sidecar-1", nil, execHook("pre"))
		b.run(p)
		b.kill(p, 30*time.Second)
		synctest.Wait() // until the runtime has answered both hooks, of which nobody waits for the answer
		var ends []string
		for _, c := range b.fake.Calls.All() {
			if c.Method == "ExecSync" {
				ends = append(ends, fmt.Sprintf("%s to %s", c.At.Sub(b.began), c.Done.Sub(b.began)))
			}
		}
		if d := cmp.Diff([]string{"0s to 32s", "0s to 32s"}, ends); d != "" {
			t.Error(d)
		}
	})
}

// One that does not end with its container, as it runs elsewhere, is ended then.
func TestPreStopAfterItsContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := withHooks(podOf(v1.RestartPolicyAlways, "a"), "a", nil, sleepHook(60))
		b.run(p)
		b.kill(p, 10*time.Second)
		if d := cmp.Diff([]string{"10s stop a 2"}, b.calls()); d != "" {
			t.Error(d)
		}
		if got := b.events.take(); len(got) != 2 || got[1] != "Warning FailedPreStopHook a: PreStopHook failed" {
			t.Errorf("events %q", got)
		}
		if now := time.Since(b.began); now != 10*time.Second {
			t.Errorf("the pod has ended after %s", now)
		}
	})
}

// A hook without a host asks at the pod's address, or the node's when the pod has none.
func TestHostOfHTTPHook(t *testing.T) {
	for name, want := range map[string]string{"own network": "10.", "host network": "192.0.2.1:9"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				p := withHooks(podOf(v1.RestartPolicyAlways, "a"), "a", &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt32(9)}}, nil)
				p.Spec.HostNetwork = name == "host network"
				e := b.sync(p).StartErrors["a"]
				if !strings.Contains(e.Message, "connection refused by "+want) {
					t.Errorf("got %q", e.Message)
				}
			})
		})
	}
}

// When the grace period becomes shorter, the pass is ended and done again: the hook goes on and is
// not run a second time.
func TestPreStopOutlivesItsPass(t *testing.T) {
	for _, tc := range []struct {
		name  string
		takes time.Duration
		grace time.Duration
		want  []string
	}{
		{"it ends within the shorter period", 8 * time.Second, 20 * time.Second, []string{"0s exec pre in a", "8s stop a 17"}},
		{"it does not", time.Hour, 3 * time.Second, []string{"0s exec pre in a", "8s stop a 2"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.fake.Programs.Set("a", executes(tc.takes, 0))
				p := withHooks(podOf(v1.RestartPolicyAlways, "a"), "a", nil, execHook("pre"))
				b.run(p)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				if err := b.KillPod(ctx, p, b.observe(), time.Minute); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("the ended pass: %v", err)
				}
				b.kill(p, tc.grace)
				if d := cmp.Diff(tc.want, b.calls()); d != "" {
					t.Error(d)
				}
			})
		})
	}
}

// A hook that has ended is not run again by the next try to stop the container, and by another
// agent neither.
func TestPreStopRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := withHooks(podOf(v1.RestartPolicyAlways, "a"), "a", nil, execHook("pre"))
		b.run(p)
		b.fake.Calls.Fail("StopContainer", 2, status.Error(codes.Unavailable, "not now"))
		for range 2 {
			if err := b.KillPod(t.Context(), p, b.observe(), 30*time.Second); err == nil {
				t.Fatal("no error")
			}
		}
		b.leave()
		b.Runtime = b.newRuntime(b.root)
		b.kill(p, 30*time.Second)
		if d := cmp.Diff([]string{"0s exec pre in a", "0s stop a 30", "0s stop a 30", "0s stop a 30"}, b.calls()); d != "" {
			t.Error(d)
		}
	})
}

// The next incarnation of a container has its own run.
func TestPreStopOfEachIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := withHooks(podOf(v1.RestartPolicyAlways, "a"), "a", nil, execHook("pre"))
		for range 2 {
			b.run(p)
			if err := b.killer.killContainer(t.Context(), p, b.observe().FindContainer("a"), "it is to end", time.Second); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff([]string{"0s exec pre in a", "0s stop a 2"}, b.calls()); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff([]string{"Normal Killing a: it is to end"}, b.events.take()); d != "" {
				t.Error(d)
			}
		}
	})
}

// An agent that leaves takes a running hook with it and says nothing; the next agent does not run
// it again.
func TestPreStopOfAnAgentThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.fake.Programs.Set("a", executes(time.Hour, 0))
		p := withHooks(podOf(v1.RestartPolicyAlways, "a"), "a", nil, execHook("pre"))
		b.run(p)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Second, cancel)
		if err := b.KillPod(ctx, p, b.observe(), time.Minute); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
		b.leave()
		if took := time.Since(b.began); took != 5*time.Second {
			t.Errorf("left after %s", took)
		}
		if err := b.KillPod(t.Context(), withHooks(p, "a", nil, execHook("another")), b.observe(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{"0s exec pre in a", "5s stop a 60"}, b.calls()); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff([]string{"Normal Killing a: Stopping container a", "Normal Killing a: Stopping container a"}, b.events.take()); d != "" {
			t.Error(d)
		}
	})
}

// A pod that only the runtime knows is ended with the hooks that its containers were created with,
// without events.
func TestPreStopWithoutAPod(t *testing.T) {
	for name, hook := range map[string]*v1.LifecycleHandler{
		"exec": execHook("pre"),
		"http": {HTTPGet: &v1.HTTPGetAction{Port: intstr.FromString("web")}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.fake.Programs.Set("a", executes(3*time.Second, 0))
				p := withHooks(podOf(v1.RestartPolicyAlways, "a", "b"), "a", nil, hook)
				p.Spec.Containers[0].Ports = []v1.ContainerPort{{Name: "web", ContainerPort: 80}}
				b.run(p)
				if err := os.RemoveAll(b.starter.files.dir(p.UID)); err != nil {
					t.Fatal(err)
				}
				b.kill(nil, time.Second)
				got := b.calls()
				slices.Sort(got)
				want := []string{"0s stop b 2", "0s exec pre in a", "1s stop a 2"}
				if name == "http" {
					want = []string{"0s stop a 2", "0s stop b 2"}
				}
				slices.Sort(want)
				if d := cmp.Diff(want, got); d != "" {
					t.Error(d)
				}
				if events := b.events.take(); events != nil {
					t.Errorf("got events %v", events)
				}
				if _, err := os.Stat(b.starter.files.dir(p.UID)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the pod's folder was made again: %v", err)
				}
			})
		})
	}
}

func TestPreStopAnnotationThatIsBroken(t *testing.T) {
	cs := &pod.ContainerStatus{ID: "c", Name: "a", Annotations: map[string]string{cri.PreStopHandlerAnnotation: "{"}}
	if _, _, err := preStopOf(nil, cs); err == nil || !strings.Contains(err.Error(), cri.PreStopHandlerAnnotation) {
		t.Errorf("got %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := podOf(v1.RestartPolicyAlways, "a")
		b.run(p)
		s := b.observe()
		s.Containers[0].Annotations = cs.Annotations
		if err := b.KillPod(t.Context(), nil, s, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{"0s stop a 5"}, b.calls()); d != "" {
			t.Error(d)
		}
	})
}

// What is noted of a container's hooks goes with its pod's folder, and takes one file per
// container.
func TestPreStopNote(t *testing.T) {
	files := podFiles{safepath.Root(t.TempDir())}
	isFirst := func(id pod.ContainerID) bool {
		t.Helper()
		first, err := files.recordPreStop("u1", &pod.ContainerStatus{ID: id, Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		return first
	}
	for range 2 {
		if !isFirst("1") {
			t.Error("noted without a pod's folder")
		}
	}
	if err := os.MkdirAll(files.dir("u1"), 0o750); err != nil {
		t.Fatal(err)
	}
	for _, id := range []pod.ContainerID{"1", "2"} {
		if !isFirst(id) || isFirst(id) {
			t.Errorf("incarnation %s: want it noted once", id)
		}
	}
	entries, err := os.ReadDir(files.containerDir("u1", "a"))
	if err != nil || len(entries) != 1 {
		t.Errorf("got %v, %v", entries, err)
	}
}
