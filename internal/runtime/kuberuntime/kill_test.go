package kuberuntime

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/runtime/cri/critest"
)

func TestComputeGrace(t *testing.T) {
	for _, tc := range []struct {
		name                          string
		deletion, pod, live, startup_ *int64
		why                           killReason
		want                          time.Duration
	}{
		{"nothing is said", nil, nil, nil, nil, killOther, 2 * time.Second},
		{"the pod's", nil, seconds(30), nil, nil, killOther, 30 * time.Second},
		{"none at all", nil, seconds(0), nil, nil, killOther, 0},
		{"the deletion's, though longer", seconds(60), seconds(30), seconds(5), nil, killLiveness, time.Minute},
		{"the liveness probe's", nil, seconds(30), seconds(5), seconds(6), killLiveness, 5 * time.Second},
		{"the liveness probe's, though longer", nil, seconds(30), seconds(90), nil, killLiveness, 90 * time.Second},
		{"the startup probe's", nil, seconds(30), seconds(5), seconds(6), killStartup, 6 * time.Second},
		{"a probe without its own", nil, seconds(30), nil, nil, killLiveness, 30 * time.Second},
		{"another reason", nil, seconds(30), seconds(5), seconds(6), killOther, 30 * time.Second},
	} {
		p := podOf(v1.RestartPolicyAlways, "a")
		p.DeletionGracePeriodSeconds, p.Spec.TerminationGracePeriodSeconds = tc.deletion, tc.pod
		p.Spec.Containers[0].LivenessProbe = &v1.Probe{TerminationGracePeriodSeconds: tc.live}
		p.Spec.Containers[0].StartupProbe = &v1.Probe{TerminationGracePeriodSeconds: tc.startup_}
		if got := computeGrace(p, "a", tc.why); got != tc.want {
			t.Errorf("%s: got %s, want %s", tc.name, got, tc.want)
		}
	}
	if got := computeGrace(podOf(v1.RestartPolicyAlways, "a"), "gone", killLiveness); got != minGrace {
		t.Errorf("container without a spec: got %s", got)
	}
}

// Containers stop side by side, sidecars after them in reverse order; preStop hooks of sidecars do
// not wait.
func TestOrderOfKillPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		for name, delay := range map[string]time.Duration{"a": 4 * time.Second, "b": 6 * time.Second, "sidecar-1": time.Second, "sidecar-2": time.Second} {
			b.fake.Programs.Set(name, critest.Program{StopDelay: delay})
		}
		p := podOf(v1.RestartPolicyAlways, "sidecar-1", "sidecar-2", "a", "b")
		withHooks(p, "sidecar-1", nil, execHook("pre"))
		b.run(p)
		b.kill(p, 30*time.Second)
		got := b.calls()
		slices.Sort(got[:3])
		if d := cmp.Diff([]string{"0s exec pre in sidecar-1", "0s stop a 30", "0s stop b 30", "6s stop sidecar-2 24", "7s stop sidecar-1 23"}, got); d != "" {
			t.Error(d)
		}
		events := b.events.take()
		slices.Sort(events)
		if d := cmp.Diff([]string{
			"Normal Killing a: Stopping container a", "Normal Killing b: Stopping container b",
			"Normal Killing sidecar-1: Stopping container sidecar-1", "Normal Killing sidecar-2: Stopping container sidecar-2",
		}, events); d != "" {
			t.Error(d)
		}
	})
}

// Sidecars wait no longer than the grace period, and are given the least time then.
func TestSidecarsWaitAtMostTheGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.fake.Programs.Set("a", critest.Program{IgnoresStop: true})
		p := podOf(v1.RestartPolicyAlways, "sidecar-1", "a")
		b.run(p)
		b.kill(p, 10*time.Second)
		if d := cmp.Diff([]string{"0s stop a 10", "10s stop sidecar-1 2"}, b.calls()); d != "" {
			t.Error(d)
		}
	})
}

func TestKillPodOfContainerInUnknownState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := withHooks(podOf(v1.RestartPolicyAlways, "a"), "a", nil, execHook("pre"))
		b.run(p)
		b.fake.MakeUnknown("a")
		b.kill(p, 30*time.Second)
		if d := cmp.Diff([]string{"0s stop a 2"}, b.calls()); d != "" {
			t.Error(d)
		}
	})
}
