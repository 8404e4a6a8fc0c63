package allocation_test

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/allocation"
)

// ofGeneration gives the pod a generation.
func ofGeneration(p *v1.Pod, n int64) *v1.Pod {
	p.Generation = n
	return p
}

// asks is the CPU request of the pod's containers, as the record has it for a pod that asks for
// something else.
func asks(of func(*v1.Pod) *v1.Pod) string {
	p := of(newPod("p", "90", "91"))
	return p.Spec.InitContainers[0].Resources.Requests.Cpu().String() + " " + p.Spec.Containers[0].Resources.Requests.Cpu().String()
}

func TestResize(t *testing.T) {
	a, _, _ := newAllocations("")
	check := func(when, given, actuated, cgroup string, want allocation.Resize) {
		t.Helper()
		got := []string{asks(a.Apply), asks(func(p *v1.Pod) *v1.Pod { return a.Actuated(a.Apply(p)) }), asks(func(p *v1.Pod) *v1.Pod { return a.Cgroup(a.Apply(p)) })}
		if diff := cmp.Diff([]string{given, actuated, cgroup}, got); diff != "" {
			t.Errorf("%s: given, actuated, cgroup: -want +got:\n%s", when, diff)
		}
		if diff := cmp.Diff(want, a.Resize("p")); diff != "" {
			t.Errorf("%s: -want +got:\n%s", when, diff)
		}
	}
	at := time.Unix(1000, 0)
	p := ofGeneration(newPod("p", "1", "2"), 1)
	a.Allocate(p)
	check("admitted", "1 2", "1 2", "1 2", allocation.Resize{})
	if a.Actuated(p) != p || a.IsWanted(p) {
		t.Error("a pod that was just admitted is being resized")
	}

	p = ofGeneration(newPod("p", "3", "4"), 2)
	why := &allocation.Pending{Reason: "Deferred", Message: "m", Generation: 2}
	if !a.IsWanted(p) || !a.Refuse("p", why) || a.Refuse("p", &allocation.Pending{Reason: "Deferred", Message: "m", Generation: 2}) {
		t.Error("a refusal is news once")
	}
	check("refused", "1 2", "1 2", "1 2", allocation.Resize{Pending: why})

	a.Grant(p)
	check("granted", "3 4", "1 2", "1 2", allocation.Resize{InProgress: true, Generation: 2})
	if !a.Failed(p, "e", at) || a.Failed(p, "f", at) {
		t.Error("a failure is the first once")
	}
	a.Actuate(t.Context(), p, "c")
	check("half done", "3 4", "1 4", "1 2", allocation.Resize{InProgress: true, Generation: 2, Error: "f", RetryAt: at})

	was := p
	p = ofGeneration(newPod("p", "1", "5"), 3)
	a.Grant(p)
	check("another before it is done", "1 5", "1 4", "1 2", allocation.Resize{InProgress: true, Generation: 3, Superseded: true})
	if a.Actuated(was) != was || a.Failed(was, "e", at) {
		t.Error("a pass that does not know of the resize yet takes part in it")
	}
	a.Complete(t.Context(), was)
	check("what it had before is done", "1 5", "1 4", "1 2", allocation.Resize{InProgress: true, Generation: 3, Superseded: true})
	a.Actuate(t.Context(), was, "i")
	check("a container started with what it had before", "1 5", "3 4", "1 2", allocation.Resize{InProgress: true, Generation: 3, Superseded: true})
	a.Actuate(t.Context(), p, "i", "c")
	check("done but for the cgroup", "1 5", "1 5", "1 2", allocation.Resize{InProgress: true, Generation: 3, Superseded: true})
	if q := a.Apply(newPod("p", "1", "5")); a.Actuated(q) == q {
		t.Error("a resize that is not complete looks so")
	}
	a.Complete(t.Context(), p)
	check("complete", "1 5", "1 5", "1 5", allocation.Resize{Generation: 3})
	a.Forget("p")
	check("forgotten", "90 91", "90 91", "90 91", allocation.Resize{})
}

func TestSameRequest(t *testing.T) {
	p := ofGeneration(newPod("p", "1", "2"), 1)
	for name, tc := range map[string]struct {
		pod  *v1.Pod
		want bool
	}{
		"other words":        {ofGeneration(newPod("p", "1000m", "2"), 1), true},
		"another amount":     {ofGeneration(newPod("p", "1", "3"), 1), false},
		"another generation": {ofGeneration(newPod("p", "1", "2"), 2), false},
	} {
		if got := allocation.SameRequest(p, tc.pod); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// An agent that is killed after Keep returned has a successor that knows how far a resize has come.
func TestResizeOutlivesTheAgent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "allocations.json")
	synctest.Test(t, func(t *testing.T) {
		a, _, _ := newAllocations(file)
		stop := run(t, a)
		defer stop()
		a.Allocate(newPod("p", "1", "2"))
		p := ofGeneration(newPod("p", "3", "4"), 2)
		a.Grant(p)
		a.Actuate(t.Context(), p, "c")
		b, _, _ := newAllocations(file)
		b.Load()
		if got := asks(b.Apply) + ", " + asks(func(p *v1.Pod) *v1.Pod { return b.Actuated(b.Apply(p)) }) + ", " + asks(b.Cgroup); got != "3 4, 1 4, 1 2" {
			t.Errorf("the next agent knows %s", got)
		}
		if b.IsCurrent(pod.UID("p")) || !a.IsCurrent("p") {
			t.Error("the pod is current to the agent that admitted it, and to no other")
		}
		a.Complete(t.Context(), p)
		c, _, _ := newAllocations(file)
		c.Load()
		if r := c.Resize("p"); r.InProgress || r.Generation != 2 {
			t.Errorf("the next agent takes a complete resize for %+v", r)
		}
	})
}

func TestSummary(t *testing.T) {
	got := allocation.Summary(withPodLevel(ofGeneration(newPod("p", "1", "2"), 3), "4"), `no "room"`)
	want := `{"resources":{"requests":{"cpu":"4"}},"initContainers":[{"name":"i","resources":{"requests":{"cpu":"1"}}}],` +
		`"containers":[{"name":"c","resources":{"requests":{"cpu":"2"}}}],"generation":3,"error":"no \"room\""}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
