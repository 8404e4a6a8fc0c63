package admission

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/pod"
	"berth/internal/pod/allocation"
	"berth/internal/record/events/messagestest"
	"berth/internal/record/journal"
)

// bench is what surrounds a chain: pods that run, pods that were refused, pods that are being
// ended.
type bench struct {
	*Chain
	node     *v1.Node
	refused  []string
	killed   map[pod.UID]chan<- struct{}
	statuses map[pod.UID]v1.PodStatus
	events   []string
	refresh  func() error
}

// newChain returns a chain with defaults for what the configuration lacks.
func newChain(cfg Config) *Chain {
	cfg.Pods, cfg.States, cfg.Observed = pod.NewManager(), pod.NewStates(), notObserved{}
	cfg.Ended, cfg.Devices = func(pod.UID) bool { return false }, func() map[v1.ResourceName]int64 { return nil }
	cfg.Assigner, cfg.Journal = noAssigner{}, journal.New(slog.New(slog.DiscardHandler))
	if cfg.Node == nil {
		cfg.Node = func() (*v1.Node, bool) { return &v1.Node{}, true }
	}
	if cfg.Refresh == nil {
		cfg.Refresh = func(context.Context) error { return nil }
	}
	if cfg.Facts == nil {
		cfg.Facts = func() Facts { return Facts{} }
	}
	if cfg.Allocations == nil {
		cfg.Allocations = allocation.New(allocation.Config{})
	}
	if cfg.Event == nil {
		cfg.Event = func(*v1.Pod, string, string, string, string) {}
	}
	if cfg.Wake == nil {
		cfg.Wake = func(pod.UID) {}
	}
	return New(cfg)
}

// noAssigner is a no-op Assigner.
type noAssigner struct{}

func (noAssigner) Assign(*v1.Pod) error    { return nil }
func (noAssigner) Reassign(*v1.Pod) error  { return nil }
func (noAssigner) Release(pod.UID)         {}
func (noAssigner) Retain(map[pod.UID]bool) {}

// notObserved is a runtime that has no pods.
type notObserved struct{}

func (notObserved) Newest(pod.UID) (*pod.Status, bool) { return nil, false }
func (notObserved) Subscribe() *pod.Inbox[pod.UID]     { return pod.NewInbox[pod.UID]() }

func newBench(t *testing.T, active ...*v1.Pod) *bench {
	t.Helper()
	b := &bench{node: newNode(), killed: map[pod.UID]chan<- struct{}{}, statuses: map[pod.UID]v1.PodStatus{}}
	ready := make(chan struct{})
	close(ready)
	b.Chain = newChain(Config{
		Handlers: Handlers(), Ready: ready,
		Reject: func(p *v1.Pod, r Rejection) { b.refused = append(b.refused, p.Name+" "+told(&r)) },
		Node:   func() (*v1.Node, bool) { return b.node, b.node != nil },
		Refresh: func(context.Context) error {
			if b.refresh == nil {
				t.Error("the Node was read again")
				return nil
			}
			return b.refresh()
		},
		Preempt: true,
		Event: func(p *v1.Pod, _, eventtype, reason, message string) {
			messagestest.SawEvent(reason, message)
			b.events = append(b.events, p.Name+" "+eventtype+" "+reason+": "+message)
		},
	})
	b.run(active...)
	return b
}

// end lets a pod that is being ended have ended.
func (b *bench) end(uid pod.UID) {
	b.cfg.States.Set(uid, pod.Lifecycle{State: pod.Terminated})
	close(b.killed[uid])
}

func (b *bench) admit(t *testing.T, p *v1.Pod) Verdict {
	t.Helper()
	v, err := b.Admit(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	for _, victim := range v.Victims {
		uid := victim.Pod.UID
		b.killed[uid] = victim.Done
		s := v1.PodStatus{Phase: v1.PodRunning}
		victim.Status(&s)
		messagestest.SawStatus(&s)
		b.statuses[uid] = s
	}
	return v
}

func TestNobodyIsJudgedBeforeItIsKnownWhatRuns(t *testing.T) {
	ready := make(chan struct{})
	asked := 0
	c := newChain(Config{
		Ready: ready, Reject: func(*v1.Pod, Rejection) {},
		Handlers: []Handler{func(Attributes) *Rejection { asked++; return nil }},
	})
	early, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Admit(early, newPod("p")); !errors.Is(err, context.Canceled) || asked != 0 {
		t.Fatalf("error %v after %d questions", err, asked)
	}
	close(ready)
	if v, err := c.Admit(t.Context(), newPod("p")); err != nil || !v.Admitted || asked != 1 {
		t.Fatalf("got %+v, %v after %d questions", v, err, asked)
	}
}

// A pod that had ended when the agent began is not judged, and takes nothing of the node.
func TestPodThatHasEnded(t *testing.T) {
	ended := newPod("ended", requests("cpu", "2"))
	b := newBench(t)
	b.cfg.Ended = func(uid pod.UID) bool { return uid == ended.UID }
	b.run(newPod("o", requests("cpu", "2")))
	b.cfg.Pods.Set(ended)
	if v := b.admit(t, ended); !v.Admitted || len(b.refused) > 0 {
		t.Fatalf("got %+v, refused %v", v, b.refused)
	}
	b.cfg.States.Set(ended.UID, pod.Lifecycle{State: pod.Syncing})
	if b.cfg.isActive(ended.UID) {
		t.Error("it counts as one that runs")
	}
}

func TestFirstRefusalDecides(t *testing.T) {
	b := newBench(t)
	asked := 0
	var others int
	refuse := func(reason string) Handler {
		return func(Attributes) *Rejection { asked++; return &Rejection{Reason: reason, Message: "no"} }
	}
	b.cfg.Handlers = []Handler{func(a Attributes) *Rejection { others = len(a.OtherPods()); return nil }, refuse("One"), refuse("Two")}
	p := newPod("p")
	b.run(p, newPod("o"))
	if v := b.admit(t, p); v.Admitted || v.Later != nil {
		t.Fatalf("a refused pod: %+v", v)
	}
	if diff := cmp.Diff([]string{"p One: no"}, b.refused); diff != "" || asked != 1 || others != 1 {
		t.Fatalf("asked %d, %d other pods, refused:\n%s", asked, others, diff)
	}
}

func TestWithoutANodeNothingOfItIsJudged(t *testing.T) {
	b := newBench(t)
	c := newChain(Config{Handlers: Handlers(), Ready: b.cfg.Ready, Reject: b.cfg.Reject})
	p := newPod("p", requests("cpu", "100"), func(p *v1.Pod) { p.Spec.NodeName = "other" })
	if v, err := c.Admit(t.Context(), p); err != nil || !v.Admitted {
		t.Fatalf("got %+v, %v; refused %q", v, err, b.refused)
	}
	b.node = nil
	b.admit(t, p)
	if diff := cmp.Diff([]string{"p InvalidNodeInfo: The Node of this machine is not known."}, b.refused); diff != "" {
		t.Fatal(diff)
	}
}

func TestAStaleNodeIsReadAgain(t *testing.T) {
	ssd := func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }
	refused := "p NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
	newer := newNode()
	newer.Labels["disk"] = "ssd"
	for _, tc := range []struct {
		name   string
		pod    *v1.Pod
		newer  *v1.Node
		err    error
		reads  int
		refuse []string
	}{
		{"the label is there by now", newPod("p", ssd), newer, nil, 1, nil},
		{"it is not", newPod("p", ssd), newNode(), nil, 1, []string{refused}},
		{"the API server is away", newPod("p", ssd), nil, errors.New("no route"), 1, []string{refused}},
		{"static pods do not wait for the API server", newPod("p", ssd, static), newer, nil, 0, []string{refused}},
	} {
		b := newBench(t)
		reads := 0
		b.refresh = func() error {
			if reads++; tc.newer != nil {
				b.node = tc.newer
			}
			return tc.err
		}
		v := b.admit(t, tc.pod)
		if diff := cmp.Diff(tc.refuse, b.refused); diff != "" || reads != tc.reads || v.Admitted != (tc.refuse == nil) {
			t.Errorf("%s: %+v after %d reads (want %d), refused:\n%s", tc.name, v, reads, tc.reads, diff)
		}
	}
}

func TestRoomIsMadeForACriticalPod(t *testing.T) {
	a, other := newPod("a", requests("cpu", "1200m")), newPod("b", requests("cpu", "800m"))
	b := newBench(t, a, other)
	needy := newPod("needy", requests("cpu", "2"), critical)
	registry := prometheus.NewRegistry()
	b.metrics = newMetrics(registry)
	v := b.admit(t, needy)
	if diff := cmp.Diff(map[string]float64{`kubelet_preemptions{preemption_signal="cpu"}`: 1}, metricstest.Values(t, registry)); diff != "" {
		t.Errorf("what pods had to end for (-want +got):\n%s", diff)
	}
	if v.Admitted || v.Later == nil || len(b.killed) != 2 || len(b.refused) != 0 {
		t.Fatalf("got %+v, killed %d, refused %q", v, len(b.killed), b.refused)
	}
	want := []string{
		"a Warning Preempting: Preempted in order to admit critical pod",
		"b Warning Preempting: Preempted in order to admit critical pod",
	}
	if diff := cmp.Diff(want, b.events); diff != "" {
		t.Fatal(diff)
	}
	if s := b.statuses["a"]; s.Phase != v1.PodFailed || s.Reason != "Preempting" {
		t.Fatalf("the victim's status is %+v", s)
	}
	// Nobody is judged while room is being made, not even one that would fit.
	if v := b.admit(t, newPod("small")); v.Later == nil {
		t.Fatalf("the next pod: %+v", v)
	}
	b.end("a")
	<-v.Later
	v = b.admit(t, needy)
	if v.Later == nil || len(b.killed) != 2 {
		t.Fatalf("after the first victim: %+v, killed %d", v, len(b.killed))
	}
	b.end("b")
	<-v.Later
	if v = b.admit(t, needy); !v.Admitted {
		t.Fatalf("after all victims: %+v, refused %q", v, b.refused)
	}
}

func TestNoRoomCanBeMade(t *testing.T) {
	for _, tc := range []struct {
		name    string
		active  *v1.Pod
		pod     *v1.Pod
		preempt bool
		want    string
	}{
		{
			"all others are critical", newPod("a", requests("cpu", "1"), critical), newPod("p", requests("cpu", "2"), critical), true,
			"p UnexpectedAdmissionError: Unexpected error while attempting to recover from admission failure: preemption: " +
				"error finding a set of pods to preempt: no set of running pods found to reclaim resources: cpu: 1000",
		},
		{
			"the pod is not critical", newPod("a", requests("cpu", "1")), newPod("p", requests("cpu", "2"), withPriority(1000)), true,
			"p OutOfcpu: Node didn't have enough resource: cpu, requested: 2000, used: 1000, capacity: 2000",
		},
		{
			"nobody is ended here", newPod("a", requests("cpu", "1")), newPod("p", requests("cpu", "2"), static), false,
			"p OutOfcpu: Node didn't have enough resource: cpu, requested: 2000, used: 1000, capacity: 2000",
		},
	} {
		b := newBench(t, tc.active)
		b.cfg.Preempt = tc.preempt
		if v := b.admit(t, tc.pod); v.Admitted || v.Later != nil || v.Victims != nil {
			t.Errorf("%s: %+v", tc.name, v)
		}
		if diff := cmp.Diff([]string{tc.want}, b.refused); diff != "" {
			t.Errorf("%s: %s", tc.name, diff)
		}
	}
}

// An API server that does not answer holds pods up for a while, not for ever; the end of the agent
// ends the wait, and nobody is refused by it.
func TestWaitForANewerNodeIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.cfg.Refresh = func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		elsewhere := newPod("p", func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := b.Admit(ctx, elsewhere); !errors.Is(err, context.Canceled) || len(b.refused) != 0 {
			t.Errorf("error %v, refused %q", err, b.refused)
		}
		b.admit(t, elsewhere)
		if len(b.refused) != 1 {
			t.Errorf("refused %q", b.refused)
		}
	})
}

// An extended resource that somebody has just advertised may not be in the Node as it was last
// seen.
func TestExtendedResourceOfANewerNode(t *testing.T) {
	b := newBench(t)
	b.refresh = func() error {
		n := newNode()
		n.Status.Allocatable[gpu] = resources(string(gpu), "1")[gpu]
		b.node = n
		return nil
	}
	if v := b.admit(t, newPod("p", requests(string(gpu), "1"))); !v.Admitted {
		t.Errorf("refused %q", b.refused)
	}
}

// What a pod was admitted with counts, whatever its spec says now.
func TestAllocationsCount(t *testing.T) {
	b := newBench(t)
	p := newPod("a", requests("cpu", "500m"))
	if v := b.admit(t, p); !v.Admitted {
		t.Fatalf("refused: %q", b.refused)
	}
	a := newPod("a", requests("cpu", "2")) // its spec was changed
	b.run(a)
	if v := b.admit(t, newPod("b", requests("cpu", "1500m"))); !v.Admitted {
		t.Fatalf("refused: %q", b.refused)
	}
	b.Adopt(newPod("c", requests("cpu", "100m"))) // runs already
	b.run(newPod("b", requests("cpu", "1500m")), newPod("c"))
	b.admit(t, newPod("d", requests("cpu", "1m")))
	want := []string{"d OutOfcpu: Node didn't have enough resource: cpu, requested: 1, used: 2100, capacity: 2000"}
	if diff := cmp.Diff(want, b.refused); diff != "" {
		t.Fatal(diff)
	}
	b.Forget("a")
	if got := b.cfg.Allocations.Apply(a); got != a {
		t.Error("the allocation of a pod that is gone is kept")
	}
	b.Retain(map[pod.UID]bool{"c": true})
	if changed := newPod("b", requests("cpu", "1")); b.cfg.Allocations.Apply(changed) != changed {
		t.Error("the allocation of a pod that is not retained is kept")
	}
	if c := newPod("c"); b.cfg.Allocations.Apply(c) == c {
		t.Error("the allocation of a pod that is retained is lost")
	}
}

// A pod that is admitted again is judged by what it had.
func TestRefusedPodHasNoAllocation(t *testing.T) {
	b := newBench(t)
	b.Adopt(newPod("a", requests("cpu", "3")))
	asks := newPod("a", requests("cpu", "1"))
	b.admit(t, asks)
	if diff := cmp.Diff([]string{"a OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000"}, b.refused); diff != "" {
		t.Fatal(diff)
	}
	if b.cfg.Allocations.Apply(asks) != asks {
		t.Error("a refused pod keeps its allocation")
	}
}
