package kuberuntime

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/runtime/cri/critest"
	"berth/internal/runtime/crispec"
)

// calls without their times.
func (b *bench) deeds() []string {
	var out []string
	for _, c := range b.calls() {
		_, deed, _ := strings.Cut(c, " ")
		out = append(out, deed)
	}
	b.fake.Calls.Reset()
	return out
}

// judge does one pass with the verdicts on the named containers' newest incarnations.
func (b *bench) judge(p *v1.Pod, liveness, startup map[string]pod.ProbeVerdict) Result {
	b.t.Helper()
	s := b.observe()
	byID := func(names map[string]pod.ProbeVerdict) map[pod.ContainerID]pod.ProbeVerdict {
		out := map[pod.ContainerID]pod.ProbeVerdict{}
		for name, v := range names {
			out[s.FindContainer(name).ID] = v
		}
		return out
	}
	r := requestOf(p, s)
	r.Probes = pod.ProbeVerdicts{Liveness: byID(liveness), Startup: byID(startup)}
	res, err := b.SyncPod(b.t.Context(), r)
	sawWaiting(res)
	if err != nil {
		b.t.Fatal(err)
	}
	return res
}

func requestOf(p *v1.Pod, observed *pod.Status) Request {
	return Request{Pod: p, Observed: observed, Volumes: func(context.Context) (map[string]crispec.Volume, error) { return nil, nil }}
}

// restarts returns the restart count of each container that the runtime has.
func (b *bench) restarts() map[string]uint32 {
	out := map[string]uint32{}
	for _, cs := range b.observe().Containers {
		out[cs.Name] = max(out[cs.Name], cs.Attempt)
	}
	return out
}

// exit lets a container end a moment after it was made.
func (b *bench) exit(name string, code int32) {
	time.Sleep(time.Second)
	b.fake.Kill("web/"+name, code)
	synctest.Wait()
}

func TestRestartAllContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := specOf(t, "Never e:debug i:init s:side worker!Never{RestartAllContainers/In/42} helper")
		p.Spec.Containers[1].Lifecycle = &v1.Lifecycle{PreStop: execHook("never")}
		b.fake.Programs.Set("web/init", critest.ExitsAfter(0, 0))
		b.runAll(p)
		sandbox := b.fake.Sandboxes()[0].ID

		b.exit("worker", 42)
		res := b.sync(p)
		for _, name := range []string{"init", "side", "worker", "helper"} {
			if got := res.StartErrors[name].Reason; got != lifecycle.RestartingAllContainers {
				t.Errorf("%s waits for %q", name, got)
			}
		}
		if _, ok := res.StartErrors["debug"]; ok {
			t.Error("an ephemeral container is to be started again")
		}
		if d := cmp.Diff([]string{"debug"}, b.names()); d != "" {
			t.Errorf("left in the runtime (-want +got):\n%s", d)
		}
		for _, deed := range b.deeds() {
			if strings.HasPrefix(deed, "exec") {
				t.Errorf("a preStop hook ran: %s", deed)
			}
		}
		b.runAll(p)
		if d := cmp.Diff(map[string]uint32{"debug": 0, "init": 1, "side": 1, "worker": 1, "helper": 1}, b.restarts()); d != "" {
			t.Errorf("restart counts (-want +got):\n%s", d)
		}
		if got := b.fake.Sandboxes(); len(got) != 1 || got[0].ID != sandbox {
			t.Errorf("the sandbox did not stay: %v", got)
		}

		// A loop is held back at the container that makes it.
		b.exit("worker", 42)
		b.sync(p)
		b.settle(p)
		e := b.sync(p).StartErrors["worker"]
		if e.Reason != lifecycle.CrashLoopBackOff || e.Message != "back-off 10s restarting failed container=worker pod=web_default(u1)" {
			t.Errorf("got %+v", e)
		}
		if d := cmp.Diff(map[string]uint32{"debug": 0, "init": 2, "side": 2, "helper": 2}, b.restarts()); d != "" {
			t.Errorf("restart counts (-want +got):\n%s", d)
		}
		logs, err := filepath.Glob(filepath.Join(b.logs.dir, "*", "helper", "*"))
		if err != nil || len(logs) != 2 {
			t.Errorf("logs of helper: %v, %v; want those of the newest two incarnations", logs, err)
		}
		time.Sleep(10 * time.Second)
		b.runAll(p)
		if got := b.restarts()["worker"]; got != 2 {
			t.Errorf("worker has restart count %d, want 2", got)
		}
	})
}

// Containers that a restart of all stops and removes are never observed as ended: how they ended is
// told besides.
func TestRestartAllContainersTellsOfEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := specOf(t, "Never a!Never{RestartAllContainers/In/42} b")
		b.fake.Programs.Set("web/b", critest.Program{StopCode: 7})
		b.runAll(p)
		b.exit("a", 42)
		r := requestOf(p, b.observe())
		var ended []string
		r.Ended = func(_ context.Context, cs *pod.ContainerStatus) {
			ended = append(ended, fmt.Sprintf("%s %d %s", cs.Name, cs.ExitCode, time.Since(cs.FinishedAt)))
		}
		if _, err := b.SyncPod(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{"b 7 0s"}, ended); d != "" {
			t.Errorf("ends (-want +got):\n%s", d)
		}
	})
}

// A restart of all that is cut short goes on: whoever asked for it is removed last.
func TestRestartAllContainersGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := specOf(t, "Never a!Never{RestartAllContainers/In/42} b c")
		b.runAll(p)
		b.exit("a", 42)
		b.fake.Calls.FailNth("RemoveContainer", 2, errBusy)
		if _, err := b.trySync(t.Context(), p); err == nil {
			t.Fatal("a container that cannot be removed is no error")
		}
		if d := cmp.Diff([]string{"a", "c"}, b.names()); d != "" {
			t.Fatalf("left in the runtime (-want +got):\n%s", d)
		}
		b.sync(p)
		if d := cmp.Diff([]string(nil), b.names()); d != "" {
			t.Fatalf("left in the runtime (-want +got):\n%s", d)
		}
		b.runAll(p)
		if d := cmp.Diff(map[string]uint32{"a": 1, "b": 1, "c": 1}, b.restarts()); d != "" {
			t.Errorf("restart counts (-want +got):\n%s", d)
		}
	})
}

func TestEphemeralContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := specOf(t, "Always i:init a")
		b.runAll(p) // init runs for ever
		p = specOf(t, "Always e:debug i:init a")
		b.sync(p)
		if d := cmp.Diff([]string{"create debug 0", "start debug"}, b.deeds()); d != "" {
			t.Errorf("while init runs (-want +got):\n%s", d)
		}
		b.exit("debug", 1)
		b.exit("init", 0)
		b.settle(p)
		if d := cmp.Diff([]string{"create a 0", "start a"}, b.deeds()); d != "" {
			t.Errorf("afterwards (-want +got):\n%s", d)
		}
		p = specOf(t, "Always e:debug e:more i:init a")
		b.settle(p)
		if d := cmp.Diff([]string{"create more 0", "start more"}, b.deeds()); d != "" {
			t.Errorf("a second one (-want +got):\n%s", d)
		}
	})
}

func TestSidecarGating(t *testing.T) {
	type verdicts = map[string]pod.ProbeVerdict
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := specOf(t, "Always s:one? i:two s:three? a")
		b.fake.Programs.Set("web/two", critest.ExitsAfter(0, 0))
		p.Spec.InitContainers[0].StartupProbe.TerminationGracePeriodSeconds = seconds(7)
		step := func(what string, liveness, startup verdicts, want ...string) {
			t.Helper()
			b.judge(p, liveness, startup)
			synctest.Wait()
			if d := cmp.Diff(want, b.deeds()); d != "" {
				t.Errorf("%s (-want +got):\n%s", what, d)
			}
		}
		b.sync(p)
		b.deeds()
		step("not known", nil, nil)
		step("startup failed", nil, verdicts{"one": pod.ProbeFailure}, "stop one 7", "create one 1", "start one")
		step("not known again", nil, nil)
		step("started", nil, verdicts{"one": pod.ProbeSuccess}, "create two 0", "start two")
		step("two is done", nil, verdicts{"one": pod.ProbeSuccess}, "create three 0", "start three")
		step("three is not known", nil, verdicts{"one": pod.ProbeSuccess})
		step("one's verdict is lost, three started", nil, verdicts{"three": pod.ProbeSuccess}, "create a 0", "start a")
		// In a pod that is initialized no verdict holds anything up.
		step("liveness of one", verdicts{"one": pod.ProbeFailure}, nil, "stop one 2", "create one 2", "start one")
		step("at rest", nil, nil)
	})
}

func TestKillsSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := specOf(t, "Never a? b? c")
		p.Spec.TerminationGracePeriodSeconds = seconds(30)
		b.fake.Programs.Set("web/a", critest.Program{IgnoresStop: true})
		b.fake.Programs.Set("web/b", critest.Program{IgnoresStop: true})
		b.runAll(p)
		began := time.Now()
		b.judge(p, map[string]pod.ProbeVerdict{"a": pod.ProbeFailure, "b": pod.ProbeFailure}, nil)
		if took := time.Since(began); took != 30*time.Second {
			t.Errorf("two containers were stopped in %s, want 30s: at the same time", took)
		}
		want := []string{"Normal Killing a: Container a failed liveness probe", "Normal Killing b: Container b failed liveness probe"}
		got := b.events.take()
		if len(got) == 2 && got[0] > got[1] {
			got[0], got[1] = got[1], got[0]
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("events (-want +got):\n%s", d)
		}
	})
}

// One regular container that cannot be started does not keep the others away; an init container
// does.
func TestFailedStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := specOf(t, "Always s:side i:init a b")
		b.fake.Programs.Set("web/side", critest.FailsToStart("no"))
		b.fake.Programs.Set("web/init", critest.FailsToStart("no"))
		b.fake.Programs.Set("web/a", critest.FailsToStart("no"))
		b.sync(p)
		if d := cmp.Diff([]string{"create side 0", "start side"}, b.deeds()); d != "" {
			t.Errorf("a sidecar that fails holds the next one up (-want +got):\n%s", d)
		}
		b.fake.Programs.Set("web/side", critest.Forever())
		time.Sleep(time.Second)
		b.sync(p)
		b.fake.Programs.Set("web/side", critest.FailsToStart("no"))
		b.sync(p)
		b.deeds()
		b.exit("side", 1)
		b.fake.Programs.Set("web/init", critest.ExitsAfter(0, 0))
		time.Sleep(10 * time.Second)
		b.sync(p)
		if d := cmp.Diff([]string{"create side 2", "start side", "create init 1", "start init"}, b.deeds()); d != "" {
			t.Errorf("a sidecar that fails does not stop the list (-want +got):\n%s", d)
		}
		synctest.Wait()
		b.sync(p)
		if d := cmp.Diff([]string{"create a 0", "start a", "create b 0", "start b"}, b.deeds()); d != "" {
			t.Errorf("nor does a regular container (-want +got):\n%s", d)
		}
	})
}

func TestSandboxChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := specOf(t, "Always i:init a")
		b.fake.Programs.Set("web/init", critest.ExitsAfter(0, 0))
		b.runAll(p)
		time.Sleep(time.Second)
		b.fake.KillSandbox("web")
		synctest.Wait()
		b.sync(p)
		const changed = "Normal SandboxChanged: Pod sandbox changed, it will be killed and re-created."
		if got := b.events.take(); len(got) == 0 || got[0] != changed {
			t.Errorf("events: %q", got)
		}
		b.runAll(p)
		if d := cmp.Diff(map[string]uint32{"init": 1, "a": 1}, b.restarts()); d != "" {
			t.Errorf("restart counts (-want +got):\n%s", d)
		}
		// Nothing refers to the old sandbox once the restarted containers have ended in the new
		// one.
		time.Sleep(11 * time.Minute)
		b.exit("a", 1)
		b.runAll(p)
		if got := b.fake.Sandboxes(); len(got) != 1 || got[0].Metadata.Attempt != 1 {
			t.Errorf("sandboxes: %+v", got)
		}
		p.Spec.HostNetwork = true
		b.sync(p)
		for _, e := range b.events.take() {
			if e == changed {
				t.Error("a pod that moves to the host's network has no old sandbox")
			}
		}
		time.Sleep(10 * time.Second) // a container that is stopped with its sandbox backs off like any other
		b.runAll(p)
		if sb := b.observe().Sandboxes[0]; !sb.HostNetwork || sb.Attempt != 2 {
			t.Errorf("sandbox: %+v", sb)
		}
	})
}
