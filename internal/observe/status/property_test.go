package status

import (
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
)

// FuzzGenerate leads pods through random histories, those of a broken runtime included, and checks
// what must hold of every status.
func FuzzGenerate(f *testing.F) {
	for seed := range uint64(100) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		h := newHistory(seed)
		m := NewManager(slog.New(slog.DiscardHandler), journal.New(slog.New(slog.DiscardHandler)))
		for range 25 {
			in := h.next()
			in.Old, _ = m.Get(in.Pod.UID)
			h.check(t, in)
			old := in.Old
			m.Set(in.Pod, Generate(in))
			got, known := m.Get(in.Pod.UID)
			if !known { // refused at the first time: there is nothing before it that it could contradict
				t.Fatal("the first status was refused")
			}
			checkSuccessor(t, old, got)
		}
		m.Terminated(h.pod)
		if s, _ := m.Get(h.pod.UID); !pod.IsTerminal(s.Phase) && !pod.IsStatic(h.pod) {
			t.Errorf("a terminated pod is %s", s.Phase)
		}
	})
}

// check checks what must hold of the status of one input.
func (h *history) check(t *testing.T, in Input) {
	t.Helper()
	before := *in.Old.DeepCopy()
	podBefore := in.Pod.DeepCopy()
	s := Generate(in)
	if second := Generate(in); !equality.Semantic.DeepEqual(s, second) {
		t.Fatalf("not deterministic:\n%s", cmp.Diff(s, second))
	}
	if !equality.Semantic.DeepEqual(before, in.Old) || !equality.Semantic.DeepEqual(podBefore, in.Pod) {
		t.Fatal("Generate changed its input")
	}
	again := in
	again.Old = s
	if second := Generate(again); !equality.Semantic.DeepEqual(s, second) {
		t.Fatalf("not idempotent, generated from its own output (-first +second):\n%s", cmp.Diff(s, second))
	}
	ready, containers := condition(s, v1.PodReady), condition(s, v1.ContainersReady)
	if ready.Status == v1.ConditionTrue && containers.Status != v1.ConditionTrue {
		t.Fatalf("Ready without ContainersReady: %+v, %+v", ready, containers)
	}
	if containers.Status == v1.ConditionTrue && (condition(s, v1.PodInitialized).Status != v1.ConditionTrue || pod.IsTerminal(s.Phase)) {
		t.Fatalf("ContainersReady in phase %s, Initialized %+v", s.Phase, condition(s, v1.PodInitialized))
	}
	if len(s.ContainerStatuses) != len(in.Pod.Spec.Containers) || len(s.InitContainerStatuses) != len(in.Pod.Spec.InitContainers) {
		t.Fatal("a container of the spec has no status")
	}
	for _, cs := range allStatuses(&s) {
		n := 0
		for _, set := range []bool{cs.State.Waiting != nil, cs.State.Running != nil, cs.State.Terminated != nil} {
			if set {
				n++
			}
		}
		if n != 1 {
			t.Fatalf("container %s is in %d states: %+v", cs.Name, n, cs.State)
		}
		if cs.Ready && cs.State.Running == nil && (cs.State.Terminated == nil || cs.State.Terminated.ExitCode != 0) {
			t.Fatalf("container %s is ready in state %+v", cs.Name, cs.State)
		}
		if last := cs.LastTerminationState; last.Running != nil || last.Waiting != nil {
			t.Fatalf("container %s has last state %+v", cs.Name, last)
		}
	}
}

// checkSuccessor checks what must hold of a status that follows another.
func checkSuccessor(t *testing.T, old, s v1.PodStatus) {
	t.Helper()
	if pod.IsTerminal(old.Phase) && s.Phase != old.Phase {
		t.Fatalf("phase left %s for %s", old.Phase, s.Phase)
	}
	for _, cs := range allStatuses(&s) {
		if before := lifecycle.FindStatus(allStatuses(&old), cs.Name); before != nil && cs.RestartCount < before.RestartCount {
			t.Fatalf("restart count of %s fell from %d to %d", cs.Name, before.RestartCount, cs.RestartCount)
		}
	}
	for _, c := range s.Conditions {
		if before := findCondition(old.Conditions, c.Type); before != nil && before.Status == c.Status && !c.LastTransitionTime.Equal(&before.LastTransitionTime) {
			t.Fatalf("condition %s stayed %s, but its time moved", c.Type, c.Status)
		}
	}
}

// history is a pod and what a runtime might show of it, step by step.
type history struct {
	*rand.Rand
	pod     *v1.Pod
	now     time.Time
	sandbox uint32
	// incarnations of each container, newest first.
	incarnations map[string][]pod.ContainerStatus
	ended        bool
}

func newHistory(seed uint64) *history {
	h := &history{Rand: rand.New(rand.NewPCG(seed, 1)), now: epoch, incarnations: map[string][]pod.ContainerStatus{}}
	policies := []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}
	h.pod = newPod(withPolicy(policies[h.IntN(3)]))
	h.pod.Spec.Containers = containers([]string{"a", "b"}[:1+h.IntN(2)]...)
	if h.flip(2) {
		h.pod.Spec.InitContainers = []v1.Container{containers("init")[0], sidecar("proxy")}[:1+h.IntN(2)]
	}
	if h.flip(3) {
		never := v1.ContainerRestartPolicyNever
		c := &h.pod.Spec.Containers[0]
		c.RestartPolicy = &never
		c.RestartPolicyRules = []v1.ContainerRestartRule{{
			Action:    []v1.ContainerRestartRuleAction{"Restart", "RestartAllContainers"}[h.IntN(2)],
			ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{2}},
		}}
	}
	for _, list := range [][]v1.Container{h.pod.Spec.InitContainers, h.pod.Spec.Containers} {
		for i := range list {
			if h.flip(3) {
				list[i].ReadinessProbe = &v1.Probe{}
			}
			if h.flip(3) {
				list[i].StartupProbe = &v1.Probe{}
			}
		}
	}
	if h.flip(3) {
		static(h.pod)
	}
	if h.flip(8) {
		seconds := int64(40)
		h.pod.Spec.ActiveDeadlineSeconds = &seconds
		h.pod.Status.StartTime = &metav1.Time{Time: epoch}
	}
	if h.flip(4) {
		h.pod.Spec.HostNetwork = true
	}
	return h
}

// flip is true once in n.
func (h *history) flip(n int) bool { return h.IntN(n) == 0 }

// next is the next input: something happened to some containers, now and then to the sandbox or the
// pod.
func (h *history) next() Input {
	h.now = h.now.Add(time.Duration(h.IntN(5000)) * time.Millisecond)
	if h.flip(10) {
		h.sandbox++
	}
	if h.flip(25) {
		h.pod = h.pod.DeepCopy()
		h.pod.DeletionTimestamp = &metav1.Time{Time: h.now}
	}
	h.ended = h.ended || h.flip(25)
	in := Input{Pod: h.pod, Terminal: h.ended, RuntimeName: "containerd", Now: h.now, StartErrors: map[string]lifecycle.StartError{}}
	probing := h.flip(2)
	if !h.flip(4) {
		in.HostIPs = []string{"192.168.0.1", "fd00::1"}[:1+h.IntN(2)]
	}
	o := pod.Status{UID: h.pod.UID}
	if !h.flip(6) {
		o.IPs = []string{"10.0.0.2", "fd00:1::2"}[:h.IntN(3)]
		o.Sandboxes = []pod.SandboxStatus{{ID: "s1", Attempt: h.sandbox, Ready: !h.flip(4), IPs: o.IPs, HostNetwork: h.pod.Spec.HostNetwork}}
	}
	for _, list := range [][]v1.Container{h.pod.Spec.InitContainers, h.pod.Spec.Containers} {
		for i := range list {
			name := list[i].Name
			h.incarnations[name] = h.live(name, h.incarnations[name])
			o.Containers = append(o.Containers, h.incarnations[name]...)
			if h.flip(4) {
				in.StartErrors[name] = lifecycle.StartError{Reason: lifecycle.CrashLoopBackOff, Message: "wait"}
			}
		}
	}
	in.Observed = o
	if probing {
		in.Probes = evenPassed(o.Containers)
	}
	return in
}

// live lets something happen to a container.
func (h *history) live(name string, list []pod.ContainerStatus) []pod.ContainerStatus {
	list = slices.Clone(list)
	switch what := h.IntN(8); {
	case what == 0 && h.flip(3): // all its incarnations are removed
		return nil
	case what == 1 && len(list) > 1: // the oldest is removed
		return list[:len(list)-1]
	case what < 4 && !h.ended: // it is started
		n := uint32(0)
		if len(list) > 0 {
			n = list[0].Attempt + 1
		}
		cs := seen(name, n, []pod.ContainerState{pod.StateRunning, pod.StateRunning, pod.StateCreated, pod.StateUnknown}[h.IntN(4)])
		return append([]pod.ContainerStatus{cs}, list...)
	case what < 6 && len(list) > 0: // it ends
		list[0] = seenExited(name, list[0].Attempt, int32(h.IntN(4)))
		if h.flip(6) {
			list[0].Reason = lifecycle.OOMKilled
		}
	case what == 6 && len(list) > 0 && h.flip(3): // the runtime loses it
		list[0].State = pod.StateUnknown
	}
	return list
}

// evenPassed are the verdicts by which incarnations with an even number have passed.
func evenPassed(list []pod.ContainerStatus) pod.ProbeVerdicts {
	even := passed()
	for _, cs := range list {
		if cs.ID[len(cs.ID)-1]%2 == 0 {
			even[cs.ID] = pod.ProbeSuccess
		}
	}
	return pod.ProbeVerdicts{Readiness: even, Startup: even}
}
