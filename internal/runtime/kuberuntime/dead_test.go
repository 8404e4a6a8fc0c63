package kuberuntime

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

func TestComputeRemains(t *testing.T) {
	type list = []pod.ContainerID
	for _, tc := range []struct {
		name, observed string
		want           list
		sandboxes      []pod.SandboxID
	}{
		{name: "nothing is there", observed: ""},
		{name: "nothing stays", observed: "sb-dead a=1 a=2 b=created c=unknown", want: list{"c0", "c1", "c2", "c3"}, sandboxes: []pod.SandboxID{"s0"}},
		{name: "nothing but a sandbox", observed: "sb-dead", sandboxes: []pod.SandboxID{"s0"}},
		{name: "what ran when it was seen last stays", observed: "sb-dead a=running b=1", want: list{"c1"}},
		{name: "and a sandbox that was ready", observed: "sb a=1", want: list{"c0"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := computeRemains(inputOf(t, specOf(t, "Always a b c"), tc.observed).Observed)
			if d := cmp.Diff(tc.want, list(ids(g.Containers))); d != "" {
				t.Errorf("containers (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tc.sandboxes, g.Sandboxes); d != "" {
				t.Errorf("sandboxes (-want +got):\n%s", d)
			}
		})
	}
}

// Of a pod that goes on, the newest of each container stays, whatever becomes of it.
func TestSpare(t *testing.T) {
	type list = []pod.ContainerID
	for _, tc := range []struct {
		name, observed string
		want           list
		sandboxes      []pod.SandboxID
	}{
		{name: "what waits to run again, and what has ended for good, stays", observed: "sb a=1 b=0"},
		{name: "what was before goes", observed: "sb a=running a=1 a=1 b=1 b=1 c=created", want: list{"c1", "c2", "c4"}},
		{name: "of an older sandbox too, with it", observed: "sb a=running sb-dead a=1", want: list{"c1"}, sandboxes: []pod.SandboxID{"s1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := computeSpare(inputOf(t, specOf(t, "Always a b c"), tc.observed).Observed)
			if d := cmp.Diff(tc.want, list(ids(g.Containers))); d != "" {
				t.Errorf("containers (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tc.sandboxes, g.Sandboxes); d != "" {
				t.Errorf("sandboxes (-want +got):\n%s", d)
			}
		})
	}
}

// removal is a bench with the pod web, of which one container has ended twice, and which has ended
// if so told.
func removal(t *testing.T, ended bool) (*bench, *v1.Pod, *[]string) {
	b := newBench(t)
	b.garbage.limits.MaxPerContainer = 5
	p := specOf(t, "Always a")
	b.runAll(p)
	for range 2 {
		b.exit("a", 1)
		time.Sleep(11 * time.Minute)
		b.runAll(p)
	}
	if ended {
		b.kill(p, 0)
	}
	b.garbage.pods = func() []*pod.Status { return []*pod.Status{b.observe()} }
	b.garbage.hasEnded = func(uid pod.UID) bool { return ended && uid == "u1" }
	return b, p, &b.events.node
}

func (b *bench) logFiles() (names []string) {
	b.t.Helper()
	found, err := filepath.Glob(filepath.Join(b.logs.dir, "*", "*", "*"))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range found {
		names = append(names, filepath.Base(f))
	}
	return names
}

func TestRemoveDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, p, told := removal(t, false)
		if got := b.logFiles(); !slices.Equal(got, []string{"0.log", "1.log", "2.log"}) {
			t.Fatalf("logs: %v", got)
		}
		for range 2 {
			if err := b.RemoveDead(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := b.logFiles(); !slices.Equal(got, []string{"2.log"}) || len(b.names()) != 1 {
				t.Errorf("left are the logs %v of the containers %v", got, b.names())
			}
		}
		entries, n := b.report.journal.Read("default", "web"), 0
		for _, e := range entries {
			if e.Decision == "remove ended containers with their logs: 2" {
				n++
			}
		}
		if n != 1 || len(*told) != 0 {
			t.Errorf("%d entries of the journal tell of it, and the events %q", n, *told)
		}
		// The pod goes on and counts on.
		b.exit("a", 1)
		time.Sleep(11 * time.Minute)
		b.runAll(p)
		if got := b.observe().FindContainer("a").Attempt; got != 3 {
			t.Errorf("restarts: %d, want 3", got)
		}
	})
}

// A container of which the runtime does not know whether it runs is stopped first, and an event
// says so.
func TestRemoveDeadInUnknownState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, _ := removal(t, false)
		b.fake.MakeUnknown("a")
		b.garbage.hasEnded = func(pod.UID) bool { return true }
		if err := b.RemoveDead(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := b.names(); len(left) != 0 {
			t.Errorf("left are %v", left)
		}
		want := []string{"Normal Killing a: Container is in unknown state, try killing it before removal"}
		if diff := cmp.Diff(want, b.events.take()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestRemoveDeadOfAPodThatHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, _ := removal(t, true)
		if err := b.RemoveDead(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(b.names()) != 0 || len(b.fake.Sandboxes()) != 0 || len(b.logFiles()) != 0 {
			t.Errorf("left: containers %v, %d sandboxes, logs %v", b.names(), len(b.fake.Sandboxes()), b.logFiles())
		}
	})
}

// A failure is told of once until it is over, and keeps nothing else.
func TestRemoveDeadFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, p, told := removal(t, true)
		const want = `Warning ContainerGCFailed: pod default/web: remove container "a": `
		fails := func(events int) {
			t.Helper()
			b.fake.Calls.Fail("RemoveContainer", 1, errBusy)
			err := b.RemoveDead(t.Context())
			if err == nil || len(b.names()) != 1 || len(b.fake.Sandboxes()) != 1 || len(*told) != events || !strings.HasPrefix((*told)[events-1], want) {
				t.Errorf("%v; told %q; left are %v and %d sandboxes", err, *told, b.names(), len(b.fake.Sandboxes()))
			}
		}
		fails(1)
		fails(1)
		if err := b.RemoveDead(t.Context()); err != nil || len(b.names()) != 0 {
			t.Fatal(err)
		}
		b.runAll(p)
		b.kill(p, 0)
		fails(2)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := b.RemoveDead(ctx); !errors.Is(err, context.Canceled) || len(*told) != 2 {
			t.Errorf("of an agent that stops: %v, told %q", err, *told)
		}
	})
}
