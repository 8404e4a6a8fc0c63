package kuberuntime

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/runtime/cri/critest"
)

// crashing lets the container end n times, each time as soon as it runs again, and returns how long
// it was held back.
func (b *bench) crashing(t *testing.T, spec string, annotation string, n int) []time.Duration {
	t.Helper()
	p := specOf(t, spec)
	if annotation != "" {
		p.Annotations = map[string]string{lifecycle.BackOffAnnotation: annotation}
	}
	b.runAll(p)
	var out []time.Duration
	for range n {
		b.exit("a", 1)
		ended := time.Now()
		for {
			b.settle(p)
			res := b.sync(p)
			if len(res.StartErrors) == 0 {
				break
			}
			if e := res.StartErrors["a"]; e.Reason != lifecycle.CrashLoopBackOff || !e.BackOffUntil.Equal(res.RetryAt) {
				t.Fatalf("got %+v, again at %v", e, res.RetryAt)
			}
			time.Sleep(time.Until(res.RetryAt))
		}
		out = append(out, time.Since(ended))
	}
	return out
}

func TestBackOffs(t *testing.T) {
	const s = time.Second
	for _, tc := range []struct {
		name, annotation string
		node             time.Duration
		want             []time.Duration
	}{
		{"default", "", 0, []time.Duration{0, 10 * s, 20 * s, 40 * s, 80 * s, 160 * s, 300 * s, 300 * s}},
		{"node's maximum", "", 15 * s, []time.Duration{0, 10 * s, 15 * s, 15 * s}},
		{"the pod's own", "initial=1s,maximum=1m,factor=4", 0, []time.Duration{0, s, 4 * s, 16 * s, 60 * s, 60 * s}},
		{"the pod's own, within the node's maximum", "initial=1s,maximum=1m,factor=4", 15 * s, []time.Duration{0, s, 4 * s, 15 * s, 15 * s}},
		{"not understood", "initial=soon", 0, []time.Duration{0, 10 * s, 20 * s}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.backOffs.node = lifecycle.NodeBackOff(tc.node)
				if d := cmp.Diff(tc.want, b.crashing(t, "Always a", tc.annotation, len(tc.want))); d != "" {
					t.Errorf("held back (-want +got):\n%s", d)
				}
			})
		})
	}
}

func TestBadBackOffIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := specOf(t, "Always a")
		p.Annotations = map[string]string{lifecycle.BackOffAnnotation: "initial=soon"}
		const told = `Warning InvalidBackOff: annotation berth.dev/backoff: initial: "soon" is not a duration of 1s or more, such as 10s; ` +
			`the node's back-off is used: initial=10s,maximum=5m0s,factor=2`
		count := func() (n int) {
			for _, e := range b.events.take() {
				if e == told {
					n++
				}
			}
			return n
		}
		b.settle(p)
		if n := count(); n != 1 {
			t.Errorf("told %d times, want once", n)
		}
		p = p.DeepCopy()
		p.Annotations[lifecycle.BackOffAnnotation] = "initial=2s"
		b.sync(p)
		p.Annotations[lifecycle.BackOffAnnotation] = "initial=soon"
		b.sync(p)
		if n := count(); n != 1 {
			t.Errorf("told %d times after it was changed again, want once", n)
		}
	})
}

// Another agent goes on with the back-off where this one was.
func TestBackOffOutlivesTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := specOf(t, "Always a")
		b.crashing(t, "Always a", "", 3)
		b.leave()
		b.Runtime = b.newRuntime(b.root)
		b.exit("a", 1)
		b.settle(p)
		e := b.sync(p).StartErrors["a"]
		if want := time.Now().Add(40 * time.Second); e.Reason != lifecycle.CrashLoopBackOff || !e.BackOffUntil.Equal(want) {
			t.Errorf("got %+v, want a back-off until %v", e, want)
		}
		// An image that is changed is tried at once, whatever is noted on the old container.
		p.Spec.Containers[0].Image = "other:v2"
		b.fake.Images.Add(critest.Image{Name: "other:v2"})
		b.runAll(p)
	})
}

// An agent that follows a kubelet, which notes nothing on containers, goes by their restarts.
func TestBackOffAfterAKubelet(t *testing.T) {
	p := specOf(t, "Always a")
	created := time.Now().Add(-time.Hour)
	for _, tc := range []struct {
		restarts uint32
		ran      time.Duration
		want     time.Duration
	}{
		{0, time.Second, 0},
		{1, time.Second, 10 * time.Second},
		{4, time.Minute, 80 * time.Second},
		{1000000, time.Minute, 300 * time.Second},
		{4, 11 * time.Minute, 0}, // it ran long enough to be forgiven
	} {
		ended := created.Add(tc.ran)
		observed := &pod.Status{Containers: []pod.ContainerStatus{{
			Name: "a", State: pod.StateExited, Attempt: tc.restarts, Hash: lifecycle.ContainerHash(&p.Spec.Containers[0]), CreatedAt: created, FinishedAt: ended,
		}}}
		if got := newBackOffs(nil, 0).holds(p, observed, ended)["a"].Delay; got != tc.want {
			t.Errorf("after %d restarts and %v the container is held back for %v, want %v", tc.restarts, tc.ran, got, tc.want)
		}
	}
}

// Restart counts go on when the containers are lost.
func TestRestartCountsOutliveContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := specOf(t, "Always a")
		b.crashing(t, "Always a", "", 2)
		for _, cs := range b.observe().Containers {
			b.fake.RemoveBehindBack(string(cs.ID))
		}
		synctest.Wait()
		b.runAll(p)
		if got := b.restarts()["a"]; got != 3 {
			t.Errorf("restart count %d, want 3", got)
		}
	})
}

// A container that its liveness probe ends again and again is held back too, once its runs are
// shorter than its back-off.
func TestBackOffOfFailedProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := specOf(t, "Always a?")
		b.runAll(p)
		var got []time.Duration
		for range 6 {
			time.Sleep(15 * time.Second)
			began := time.Now()
			b.judge(p, map[string]pod.ProbeVerdict{"a": pod.ProbeFailure}, nil)
			b.settle(p)
			if res := b.sync(p); !res.RetryAt.IsZero() {
				time.Sleep(time.Until(res.RetryAt))
				b.runAll(p)
			}
			got = append(got, time.Since(began))
		}
		const s = time.Second
		if d := cmp.Diff([]time.Duration{0, 0, 0, 20 * s, 40 * s, 80 * s}, got); d != "" {
			t.Errorf("held back (-want +got):\n%s", d)
		}
	})
}
