package kuberuntime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
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
	"berth/internal/pod/lifecycle"
	"berth/internal/runtime/cri/critest"
)

func TestStartErrors(t *testing.T) {
	yes := true
	for _, tc := range []struct {
		name    string
		prepare func(*bench, *v1.Pod)
		reason  string
		message string
	}{
		{
			"a variable's ConfigMap", func(_ *bench, p *v1.Pod) {
				p.Spec.Containers[0].EnvFrom = []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "none"}}}}
			}, lifecycle.CreateContainerConfigError, `configmap "none" not found`,
		},
		{
			"a volume", func(_ *bench, p *v1.Pod) {
				p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
			}, lifecycle.CreateContainerConfigError, `cannot find volume "v" to mount into container "a"`,
		},
		{
			"runAsNonRoot", func(_ *bench, p *v1.Pod) {
				p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{RunAsNonRoot: &yes}
			},
			lifecycle.CreateContainerConfigError, "container has runAsNonRoot and image will run as root",
		},
		{
			"runAsNonRoot, and a user that is root", func(_ *bench, p *v1.Pod) {
				p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{RunAsNonRoot: &yes, RunAsUser: new(int64)}
			},
			lifecycle.CreateContainerConfigError, "container's runAsUser breaks non-root policy",
		},
		{
			"creation", func(b *bench, _ *v1.Pod) {
				b.fake.Calls.Fail("CreateContainer", 1, status.Error(codes.Unknown, "no room"))
			},
			lifecycle.CreateContainerError, "no room",
		},
		{
			"start", func(b *bench, _ *v1.Pod) { b.fake.Programs.Set("a", critest.FailsToStart("exec: no such file")) },
			lifecycle.RunContainerError, "exec: no such file",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				p := podOf(v1.RestartPolicyAlways, "a")
				p.Spec.Containers[0].TerminationMessagePath = "/dev/termination-log"
				tc.prepare(b, p)
				e := b.sync(p).StartErrors["a"]
				if e.Reason != tc.reason || !strings.Contains(e.Message, tc.message) {
					t.Errorf("got %+v, want %s with %q", e, tc.reason, tc.message)
				}
				events := b.events.take()
				if got, want := events[len(events)-1], "Warning Failed a: Error: "+e.Message; got != want {
					t.Errorf("got event %q, want %q", got, want)
				}
				left, err := filepath.Glob(filepath.Join(b.starter.files.dir(p.UID), "containers", "a", "*"))
				if err != nil || (len(left) == 1) != (tc.reason == lifecycle.RunContainerError) {
					t.Errorf("termination logs %v, %v: want that of a container that exists", left, err)
				}
			})
		})
	}
}

// The id of a container means nothing to those who read events.
func TestNamesStandForIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := podOf(v1.RestartPolicyAlways, "a")
		b.run(p)
		id := b.observe().Containers[0].ID
		if err := b.killer.killContainer(t.Context(), p, b.observe().FindContainer("a"), "", time.Second); err != nil {
			t.Fatal(err)
		}
		b.events.take()
		b.fake.Calls.Fail("CreateContainer", 1, status.Errorf(codes.Unknown, "the place is taken by %s", id))
		b.sync(p)
		if d := cmp.Diff([]string{"Warning Failed a: Error: the place is taken by a"}, b.events.take()); d != "" {
			t.Error(d)
		}
	})
}

// A name that stays reserved is left to whom it belongs: the next number is taken.
func TestCreateContainerWhoseNameIsReserved(t *testing.T) {
	for name, tc := range map[string]struct {
		times int
		want  []string
	}{
		"for a moment": {1, []string{"0s create a 0", "50ms create a 0", "50ms start a"}},
		"for long": {6, []string{
			"0s create a 0", "50ms create a 0", "150ms create a 0", "350ms create a 0", "750ms create a 0", "1.55s create a 0",
			"1.55s create a 1", "1.55s start a",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.fake.Calls.Fail("CreateContainer", tc.times, status.Error(codes.Unknown, `failed to reserve container name "x": name "x" is reserved for "y"`))
				if res := b.sync(podOf(v1.RestartPolicyAlways, "a")); len(res.StartErrors) > 0 {
					t.Errorf("got %v", res.StartErrors)
				}
				if d := cmp.Diff(tc.want, b.calls()); d != "" {
					t.Error(d)
				}
				cs := b.observe().FindContainer("a")
				if got := filepath.Base(cs.LogPath); got != strings.Fields(tc.want[len(tc.want)-2])[3]+".log" {
					t.Errorf("log %s", got)
				}
			})
		})
	}
}

// What an ended pass made and did not start never ran: it is made anew under the same number.
func TestContainerThatWasNeverStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := podOf(v1.RestartPolicyAlways, "a")
		ctx, cancel := context.WithCancel(t.Context())
		b.fake.Calls.SetLatency("CreateContainer", time.Second)
		time.AfterFunc(500*time.Millisecond, cancel)
		if _, err := b.trySync(ctx, p); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
		if cs := b.observe().FindContainer("a"); cs == nil || cs.State != pod.StateCreated {
			t.Fatalf("got %+v, want a container that is only created", cs)
		}
		if events := b.events.take(); len(events) != 1 || events[0] != "Normal Created a: Container created" {
			t.Errorf("got events %v: an ended pass is no failure", events)
		}
		b.sync(p)
		s := b.observe()
		if len(s.Containers) != 1 || s.Containers[0].State != pod.StateRunning || s.Containers[0].Attempt != 0 {
			t.Errorf("got %+v", s.Containers)
		}
	})
}

// A container that the runtime has lost hold of keeps its name, and does not keep the pod from
// running.
func TestContainerThatCannotBeRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := podOf(v1.RestartPolicyAlways, "a")
		ctx, cancel := context.WithCancel(t.Context())
		b.fake.Calls.SetLatency("CreateContainer", time.Second)
		time.AfterFunc(500*time.Millisecond, cancel)
		if _, err := b.trySync(ctx, p); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
		b.fake.Calls.Fail("RemoveContainer", 1, status.Error(codes.FailedPrecondition, "cannot delete running task x: failed precondition"))
		if res := b.sync(p); len(res.StartErrors) > 0 {
			t.Errorf("got %v", res.StartErrors)
		}
		s := b.observe()
		if cs := s.FindContainer("a"); len(s.Containers) != 2 || cs.State != pod.StateRunning || cs.Attempt != 1 {
			t.Errorf("got %+v", s.Containers)
		}
		if g := computeGarbage(s, GarbageLimits{MaxPerContainer: 1}, time.Now()); len(g.Containers) != 1 || g.Containers[0].State != pod.StateCreated {
			t.Errorf("garbage: %+v", g)
		}
	})
}

func TestNextAttempt(t *testing.T) {
	l := &podLogs{dir: t.TempDir()}
	p := podOf(v1.RestartPolicyAlways, "a")
	c := &p.Spec.Containers[0]
	state := func(attempt uint32, s pod.ContainerState) *pod.Status {
		return &pod.Status{Containers: []pod.ContainerStatus{{Name: "a", Attempt: attempt, State: s}}}
	}
	check := func(what string, s *pod.Status, want uint32) {
		t.Helper()
		if got, err := l.nextAttempt(p, c, s); got != want || err != nil {
			t.Errorf("%s: got %d, %v, want %d", what, got, err, want)
		}
	}
	check("new", &pod.Status{}, 0)
	check("ended", state(4, pod.StateExited), 5)
	check("never started", state(4, pod.StateCreated), 4)
	both := state(4, pod.StateCreated)
	both.Containers = append(both.Containers, pod.ContainerStatus{Name: "a", Attempt: 6, State: pod.StateExited}, pod.ContainerStatus{Name: "b", Attempt: 9})
	check("never started, and an older one has a higher number", both, 7)
	dir := filepath.Join(l.of(p), "a")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	check("only a folder is left", &pod.Status{}, 0)
	for _, name := range []string{"0.log", "9.log", "10.log", "12.log.20260102-030405.gz", "other"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check("only logs are left, of which the last is a rotated one", &pod.Status{}, 13)
	check("later incarnations were lost", state(4, pod.StateExited), 13)
	check("a later one is known", state(20, pod.StateExited), 21)
}

// A log shipper finds the log of each started container by pod, namespace, container and id.
func TestLogLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.fake.Programs.Set("a", critest.Program{Output: []string{"hello"}})
		b.run(podOf(v1.RestartPolicyAlways, "a"))
		cs := b.observe().FindContainer("a")
		target, err := os.Readlink(filepath.Join(b.logs.linkDir, "web_default_a-"+string(cs.ID)+".log"))
		if err != nil || target != cs.LogPath {
			t.Errorf("got %s, %v, want %s", target, err, cs.LogPath)
		}
	})
}

func TestEphemeralContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := podOf(v1.RestartPolicyAlways, "a")
		b.run(p)
		p.Spec.EphemeralContainers = []v1.EphemeralContainer{
			{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug", Image: testImage}, TargetContainerName: "a"},
			{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "free", Image: testImage}},
			{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "lost", Image: testImage}, TargetContainerName: "nobody"},
		}
		res := b.sync(p)
		e := res.StartErrors["lost"]
		if e.Reason != lifecycle.CreateContainerConfigError || !strings.HasPrefix(e.Message, `unable to find target container "nobody"`) {
			t.Errorf("got %+v", e)
		}
		got := map[string]string{}
		for _, c := range b.fake.Calls.All() {
			if req, ok := c.Request.(*runtimeapi.CreateContainerRequest); ok {
				ns := req.Config.Linux.SecurityContext.NamespaceOptions
				got[req.Config.Metadata.Name] = ns.Pid.String() + " " + ns.TargetId
			}
		}
		want := map[string]string{"debug": "TARGET " + string(b.observe().FindContainer("a").ID), "free": "CONTAINER "}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	})
}

// An ephemeral container looks at what runs, and at its target's newest incarnation.
func TestTargetOf(t *testing.T) {
	p := podOf(v1.RestartPolicyAlways, "a")
	p.Spec.EphemeralContainers = []v1.EphemeralContainer{
		{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug"}, TargetContainerName: "a"},
	}
	running, ended := pod.ContainerStatus{ID: "1", Name: "a", State: pod.StateRunning}, pod.ContainerStatus{ID: "0", Name: "a", State: pod.StateExited}
	for _, tc := range []struct {
		name, container string
		containers      []pod.ContainerStatus
		want            pod.ContainerID
		fails           bool
	}{
		{"no ephemeral container", "a", nil, "", false},
		{"it runs", "debug", []pod.ContainerStatus{running, ended}, "1", false},
		{"it has ended", "debug", []pod.ContainerStatus{ended}, "", true},
		{"it was never there", "debug", nil, "", true},
	} {
		got, err := targetOf(p, tc.container, &pod.Status{Containers: tc.containers})
		if got != tc.want || (err != nil) != tc.fails {
			t.Errorf("%s: got %q, %v", tc.name, got, err)
		}
	}
}

func TestStopSignal(t *testing.T) {
	for _, tc := range []struct {
		os, signal string
		want       runtimeapi.Signal
	}{
		{"linux", "SIGINT", runtimeapi.Signal_SIGINT},
		{"linux", "SIGRTMIN+1", runtimeapi.Signal_SIGRTMINPLUS1},
		{"linux", "SIGRTMAX-2", runtimeapi.Signal_SIGRTMAXMINUS2},
		{"linux", "", runtimeapi.Signal_RUNTIME_DEFAULT},
		{"", "SIGINT", runtimeapi.Signal_RUNTIME_DEFAULT},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			p := podOf(v1.RestartPolicyAlways, "a")
			if tc.os != "" {
				p.Spec.OS = &v1.PodOS{Name: v1.OSName(tc.os)}
			}
			if tc.signal != "" {
				signal := v1.Signal(tc.signal)
				p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{StopSignal: &signal}
			}
			b.sync(p)
			for _, c := range b.fake.Calls.All() {
				if req, ok := c.Request.(*runtimeapi.CreateContainerRequest); ok && req.Config.StopSignal != tc.want {
					t.Errorf("%q on %q: got %s, want %s", tc.signal, tc.os, req.Config.StopSignal, tc.want)
				}
			}
		})
	}
}
