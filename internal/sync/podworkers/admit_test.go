package podworkers_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/pod/allocation"
	"berth/internal/record/journal"
	"berth/internal/sync/admission"
	"berth/internal/sync/podsync"
	"berth/internal/sync/podworkers"
)

func TestPodsAreAdmittedOneAfterAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		decide := make(chan bool)
		r.admit = func(ctx context.Context, _ *v1.Pod) (admission.Verdict, error) {
			select {
			case yes := <-decide:
				return admission.Verdict{Admitted: yes}, nil
			case <-ctx.Done():
				return admission.Verdict{}, ctx.Err()
			}
		}
		r.active["running"] = true
		pods := map[string]*v1.Pod{}
		for _, uid := range []string{"a", "b", "running", "c"} {
			pods[uid] = newPod(uid)
			r.update(podworkers.SyncPodCreate, pods[uid])
			synctest.Wait()
		}
		r.expect("admit a", "sync running") // what runs already does not wait
		decide <- true
		r.expectTogether("sync a", "admit b")
		r.update(podworkers.SyncPodKill, pods["b"]) // gives its place up
		r.expectTogether("terminated b", "admit c")
		decide <- false
		r.expect("terminated c")
		if l, _ := r.states.Get("c"); l.State != pod.Finished {
			t.Fatalf("a refused pod is %v", l.State)
		}
	})
}

func TestRunningPodIsNotAdmittedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.refuse = true
		r.active["a"] = true
		r.update(podworkers.SyncPodCreate, newPod("a"))
		r.expect("sync a")
		if !r.kept["a"] {
			t.Error("nothing is kept of a pod that runs already")
		}
	})
}

// A pod that waits for room keeps its place, is asked about again when there is some, and gives its
// place up when it is not wanted any more.
func TestPodThatWaitsForRoomKeepsItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		var room chan struct{}
		r.admit = func(_ context.Context, p *v1.Pod) (admission.Verdict, error) {
			if room == nil || p.UID == "c" {
				return admission.Verdict{Admitted: true}, nil
			}
			return admission.Verdict{Later: room}, nil
		}
		room = make(chan struct{})
		for _, uid := range []string{"a", "b", "c"} {
			r.update(podworkers.SyncPodCreate, newPod(uid))
			synctest.Wait()
		}
		r.expect("admit a")
		first := room
		room = nil
		close(first)
		r.expectTogether("admit a", "sync a", "admit b", "sync b", "admit c", "sync c")

		room = make(chan struct{})
		d := newPod("d")
		r.update(podworkers.SyncPodCreate, d)
		r.expect("admit d")
		r.update(podworkers.SyncPodCreate, newPod("c2"))
		r.expect()
		room = nil
		r.update(podworkers.SyncPodKill, d)
		r.expectTogether("terminated d", "admit c2", "sync c2")
	})
}

// What is kept of a pod goes with it, and what was kept by an earlier run goes when it is known
// which pods there are.
func TestWhatIsKeptOfPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.kept["gone"], r.kept["a"], r.kept["b"] = true, true, true
		a, b := newPod("a"), newPod("b")
		r.update(podworkers.SyncPodCreate, a)
		r.update(podworkers.SyncPodCreate, b)
		r.SyncKnownPods(map[pod.UID]*v1.Pod{"a": a, "b": b})
		synctest.Wait()
		if diff := cmp.Diff(map[pod.UID]bool{"a": true, "b": true}, r.kept); diff != "" {
			t.Fatal(diff)
		}
		release := make(chan struct{})
		r.stop = func(context.Context, podsync.Request) error {
			<-release
			return nil
		}
		r.update(podworkers.SyncPodKill, a)
		r.SyncKnownPods(map[pod.UID]*v1.Pod{"b": b})
		synctest.Wait()
		if !r.kept["a"] {
			t.Error("what is kept of a pod is gone before the pod")
		}
		close(release)
		synctest.Wait()
		if diff := cmp.Diff(map[pod.UID]bool{"b": true}, r.kept); diff != "" {
			t.Fatal(diff)
		}
	})
}

// node is a node with two CPUs and the chain that guards it.
type node struct {
	*rig
	refused []string // guarded by rig.mu
	pods    *pod.Manager
}

// notObserved is a runtime that has no pods.
type notObserved struct{}

func (notObserved) Newest(pod.UID) (*pod.Status, bool) { return nil, false }
func (notObserved) Subscribe() *pod.Inbox[pod.UID]     { return pod.NewInbox[pod.UID]() }

// noAssigner is a no-op Assigner.
type noAssigner struct{}

func (noAssigner) Assign(*v1.Pod) error    { return nil }
func (noAssigner) Reassign(*v1.Pod) error  { return nil }
func (noAssigner) Release(pod.UID)         {}
func (noAssigner) Retain(map[pod.UID]bool) {}

// startNode starts workers behind a whole admission chain.
func startNode(t *testing.T) *node {
	n, states := &node{pods: pod.NewManager()}, pod.NewStates()
	ready := make(chan struct{})
	close(ready)
	machine := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("1Gi"), v1.ResourcePods: resource.MustParse("1k"),
	}}}
	chain := admission.New(admission.Config{
		Handlers: admission.Handlers(), Ready: ready, Preempt: true, Pods: n.pods, States: states,
		Node: func() (*v1.Node, bool) { return machine, true },
		Reject: func(p *v1.Pod, r admission.Rejection) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.refused = append(n.refused, string(p.UID)+" "+r.Reason)
		},
		Refresh: func(context.Context) error { return nil },
		Ended:   func(pod.UID) bool { return false }, Facts: func() admission.Facts { return admission.Facts{} }, Devices: func() map[v1.ResourceName]int64 { return nil },
		Observed: notObserved{}, Allocations: allocation.New(allocation.Config{}), Assigner: noAssigner{}, Wake: func(pod.UID) {},
		Event: func(*v1.Pod, string, string, string, string) {}, Journal: journal.New(slog.New(slog.DiscardHandler)),
	})
	n.rig = startWith(t, states, chain)
	return n
}

func (n *node) create(uid, cpu string, change ...func(*v1.Pod)) *v1.Pod {
	p := newPod(uid)
	p.Spec.Containers = []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}}}}
	for _, f := range change {
		f(p)
	}
	n.pods.Set(p)
	n.update(podworkers.SyncPodCreate, p)
	return p
}

// Two pods want the last CPU at the same moment: the one that came first has it, whichever is
// observed first.
func TestTheLastCPUGoesByTicket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		n.create("old", "1")
		n.create("first", "1")
		n.create("second", "1")
		n.create("nothing", "0")
		synctest.Wait()
		if diff := cmp.Diff([]string{"second OutOfcpu"}, n.refused); diff != "" {
			t.Fatal(diff)
		}
		for uid, want := range map[pod.UID]pod.State{"old": pod.Syncing, "first": pod.Syncing, "second": pod.Finished, "nothing": pod.Syncing} {
			if l, _ := n.states.Get(uid); l.State != want {
				t.Errorf("%s is %v, want %v", uid, l.State, want)
			}
		}
	})
}

// A critical pod waits until those have ended that go for it, and everybody behind it waits, too.
// Nobody takes its room.
func TestRoomForACriticalPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		var reason string
		n.stop = func(_ context.Context, q podsync.Request) error {
			s := v1.PodStatus{Phase: v1.PodRunning}
			q.StatusFunc(&s)
			reason = s.Reason
			time.Sleep(20 * time.Second)
			return nil
		}
		n.create("victim", "2")
		n.expect("sync victim")
		n.create("needy", "1500m", func(p *v1.Pod) {
			priority := int32(2_000_000_000)
			p.Spec.Priority = &priority
		})
		n.create("behind", "500m")
		n.create("late", "1")
		time.Sleep(19 * time.Second)
		n.expect("terminating victim 30s")
		time.Sleep(time.Second)
		synctest.Wait()
		for uid, want := range map[pod.UID]pod.State{"victim": pod.Finished, "needy": pod.Syncing, "behind": pod.Syncing, "late": pod.Finished} {
			if l, _ := n.states.Get(uid); l.State != want {
				t.Errorf("%s is %v, want %v", uid, l.State, want)
			}
		}
		if l, _ := n.states.Get("victim"); !l.Evicted || reason != "Preempting" {
			t.Errorf("the victim: %+v, reason %q", l, reason)
		}
		if diff := cmp.Diff([]string{"late OutOfcpu"}, n.refused); diff != "" {
			t.Fatal(diff)
		}
	})
}
