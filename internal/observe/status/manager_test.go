package status_test

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/observe/status"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

// rig is a manager and where it writes to.
type rig struct {
	*status.Manager
	journal *journal.Journal
	log     *bytes.Buffer
}

func newRig() rig {
	log := &bytes.Buffer{}
	j := journal.New(slog.New(slog.DiscardHandler))
	return rig{status.NewManager(slog.New(slog.NewTextHandler(log, nil)), j), j, log}
}

func (r rig) get(t *testing.T, p *v1.Pod) v1.PodStatus {
	t.Helper()
	s, ok := r.Get(p.UID)
	if !ok {
		t.Fatalf("the manager does not know pod %s", p.UID)
	}
	return s
}

// decisions returns what the journal has on the pod, "container: decision (why)".
func (r rig) decisions(p *v1.Pod) []string {
	var out []string
	for _, e := range r.journal.Read(p.Namespace, p.Name) {
		line := e.Decision
		if e.Container != "" {
			line = e.Container + ": " + line
		}
		if e.Why != "" {
			line += " (" + e.Why + ")"
		}
		out = append(out, line)
	}
	return out
}

func webPod(restart v1.RestartPolicy) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u1", Generation: 2},
		Spec:       v1.PodSpec{RestartPolicy: restart, Containers: []v1.Container{{Name: "app"}}},
	}
}

func conditionList(ready v1.ConditionStatus) []v1.PodCondition {
	return []v1.PodCondition{
		{Type: v1.PodInitialized, Status: v1.ConditionTrue},
		{Type: v1.PodReady, Status: ready},
		{Type: v1.ContainersReady, Status: ready},
		{Type: v1.PodScheduled, Status: v1.ConditionTrue},
	}
}

func withApp(phase v1.PodPhase, ready v1.ConditionStatus, app v1.ContainerState) v1.PodStatus {
	return v1.PodStatus{
		Phase: phase, Conditions: conditionList(ready),
		ContainerStatuses: []v1.ContainerStatus{{Name: "app", State: app, Ready: ready == v1.ConditionTrue}},
	}
}

var (
	runs    = v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	waits   = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	crashes = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s"}}
)

func ended(code int32) v1.ContainerState {
	return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code, Reason: "Error", Message: "secret words"}}
}

func conditionOf(s v1.PodStatus, t v1.PodConditionType) v1.PodCondition {
	i := slices.IndexFunc(s.Conditions, func(c v1.PodCondition) bool { return c.Type == t })
	if i < 0 {
		return v1.PodCondition{}
	}
	return s.Conditions[i]
}

func TestSetTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(300 * time.Millisecond) // off the full second
		m, p := newRig(), webPod(v1.RestartPolicyAlways)
		began := metav1.Now().Rfc3339Copy()
		m.Set(p, withApp(v1.PodPending, v1.ConditionFalse, waits))
		s := m.get(t, p)
		if s.StartTime == nil || !s.StartTime.Equal(&began) {
			t.Errorf("start time is %v, want %v", s.StartTime, began)
		}
		if s.ObservedGeneration != 2 {
			t.Errorf("observed generation is %d, want 2", s.ObservedGeneration)
		}
		time.Sleep(time.Minute)
		later := metav1.Now().Rfc3339Copy()
		m.Set(p, withApp(v1.PodRunning, v1.ConditionTrue, runs))
		s = m.get(t, p)
		if !s.StartTime.Equal(&began) {
			t.Errorf("start time moved to %v", s.StartTime)
		}
		want := map[v1.PodConditionType]metav1.Time{v1.PodScheduled: began, v1.PodInitialized: began, v1.PodReady: later, v1.ContainersReady: later}
		for _, c := range s.Conditions {
			if w := want[c.Type]; !c.LastTransitionTime.Equal(&w) {
				t.Errorf("condition %s changed at %v, want %v", c.Type, c.LastTransitionTime, w)
			}
		}
	})
}

func TestSetKeepsTimesOfTheAPI(t *testing.T) {
	m, p := newRig(), webPod(v1.RestartPolicyAlways)
	past := metav1.NewTime(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC))
	p.Status = v1.PodStatus{
		StartTime: &past, ObservedGeneration: 5,
		Conditions: []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue, LastTransitionTime: past}},
	}
	s := withApp(v1.PodPending, v1.ConditionFalse, waits)
	s.Conditions = append(s.Conditions, v1.PodCondition{Type: "x/y", Status: v1.ConditionTrue, LastTransitionTime: past})
	m.Set(p, s)
	got := m.get(t, p)
	if !got.StartTime.Equal(&past) {
		t.Errorf("start time is %v, want the API's", got.StartTime)
	}
	for _, c := range []v1.PodConditionType{v1.PodScheduled, "x/y"} {
		if at := conditionOf(got, c).LastTransitionTime; !at.Equal(&past) {
			t.Errorf("condition %s changed at %v, want %v", c, at, past)
		}
	}
	if got.ObservedGeneration != 5 {
		t.Errorf("observed generation is %d, want 5: it never decreases", got.ObservedGeneration)
	}
}

func TestSetCopies(t *testing.T) {
	m, p := newRig(), webPod(v1.RestartPolicyAlways)
	s := withApp(v1.PodPending, v1.ConditionFalse, crashes)
	s.ContainerStatuses[0].State = *crashes.DeepCopy()
	m.Set(p, s)
	s.ContainerStatuses[0].State.Waiting.Reason = "changed"
	s.Conditions[0].Status = "changed"
	got := m.get(t, p)
	if got.ContainerStatuses[0].State.Waiting.Reason != "CrashLoopBackOff" || got.Conditions[0].Status != v1.ConditionTrue {
		t.Error("the kept status shares memory with the caller's")
	}
}

func TestSetTruncatesMessages(t *testing.T) {
	m, p := newRig(), webPod(v1.RestartPolicyAlways)
	p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "b"})
	p.Spec.InitContainers = []v1.Container{{Name: "init"}}
	end := ended(1)
	end.Terminated = end.Terminated.DeepCopy()
	end.Terminated.Message = strings.Repeat("a", 4095) + "é and more"
	s := withApp(v1.PodRunning, v1.ConditionFalse, end)
	s.ContainerStatuses[0].LastTerminationState = end
	m.Set(p, s)
	cs := m.get(t, p).ContainerStatuses[0]
	for name, got := range map[string]string{"state": cs.State.Terminated.Message, "last state": cs.LastTerminationState.Terminated.Message} {
		if want := strings.Repeat("a", 4095); got != want {
			t.Errorf("message of the %s has %d bytes, want %d: 12 KiB over three containers, without half a character", name, len(got), len(want))
		}
	}
}

func TestTerminalPhaseStays(t *testing.T) {
	m, p := newRig(), webPod(v1.RestartPolicyNever)
	evicted := withApp(v1.PodFailed, v1.ConditionTrue, runs)
	evicted.Reason, evicted.Message = "Evicted", "low on memory"
	m.Set(p, evicted)
	for _, c := range []v1.PodConditionType{v1.PodReady, v1.ContainersReady} {
		if got := conditionOf(m.get(t, p), c); got.Status != v1.ConditionFalse || got.Reason != "PodFailed" || got.Type != c {
			t.Errorf("condition of a failed pod is %+v", got)
		}
	}
	for _, phase := range []v1.PodPhase{v1.PodRunning, v1.PodSucceeded, v1.PodPending} {
		m.Set(p, withApp(phase, v1.ConditionFalse, ended(0)))
		if s := m.get(t, p); s.Phase != v1.PodFailed || s.Reason != "Evicted" || s.Message != "low on memory" {
			t.Errorf("after %s the pod is %s, %s, %s", phase, s.Phase, s.Reason, s.Message)
		}
	}
}

func TestTransitions(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	for _, tt := range []struct {
		name    string
		policy  v1.RestartPolicy
		own     *v1.ContainerRestartPolicy
		init    bool
		from    v1.ContainerState
		to      v1.ContainerState
		refused bool
	}{
		{name: "Never, runs again", policy: v1.RestartPolicyNever, from: ended(1), to: runs, refused: true},
		{name: "Never, waits again", policy: v1.RestartPolicyNever, from: ended(0), to: waits, refused: true},
		{name: "Never, first start", policy: v1.RestartPolicyNever, from: waits, to: runs},
		{name: "Never, ends", policy: v1.RestartPolicyNever, from: runs, to: ended(1)},
		{name: "Never, ends in another way", policy: v1.RestartPolicyNever, from: ended(137), to: ended(0)},
		{name: "OnFailure, failed", policy: v1.RestartPolicyOnFailure, from: ended(1), to: runs},
		{name: "OnFailure, succeeded", policy: v1.RestartPolicyOnFailure, from: ended(0), to: runs, refused: true},
		{name: "Always", policy: v1.RestartPolicyAlways, from: ended(0), to: runs},
		{name: "own policy", policy: v1.RestartPolicyNever, own: &always, from: ended(0), to: runs},
		{name: "init, Never", policy: v1.RestartPolicyNever, init: true, from: ended(1), to: runs, refused: true},
		{name: "init succeeded, new sandbox", policy: v1.RestartPolicyOnFailure, init: true, from: ended(0), to: runs},
		{name: "sidecar, Never", policy: v1.RestartPolicyNever, own: &always, init: true, from: ended(0), to: runs},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, p := newRig(), webPod(tt.policy)
			c := v1.Container{Name: "app", RestartPolicy: tt.own}
			with := func(state v1.ContainerState) v1.PodStatus {
				s := withApp(v1.PodRunning, v1.ConditionFalse, state)
				if tt.init {
					s.InitContainerStatuses, s.ContainerStatuses = s.ContainerStatuses, nil
				}
				return s
			}
			p.Spec.Containers = []v1.Container{c}
			if tt.init {
				p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers, nil
			}
			m.Set(p, with(tt.from))
			before := m.get(t, p)
			changed, cancel := m.Subscribe()
			defer cancel()
			m.Set(p, with(tt.to))
			refused := len(changed.Take()) == 0
			if refused != tt.refused {
				t.Fatalf("refused is %v, want %v", refused, tt.refused)
			}
			if refused != strings.Contains(m.log.String(), "pod status refused") {
				t.Errorf("refused is %v, but the log says %q", refused, m.log.String())
			}
			if diff := cmp.Diff(before, m.get(t, p)); refused && diff != "" {
				t.Errorf("a refused status changed something:\n%s", diff)
			}
		})
	}
}

func TestSubscribe(t *testing.T) {
	m, p := newRig(), webPod(v1.RestartPolicyAlways)
	changed, cancel := m.Subscribe()
	other, cancelOther := m.Subscribe()
	defer cancelOther()
	expect := func(what string, in *pod.Inbox[pod.UID], want ...pod.UID) {
		t.Helper()
		if got := in.Take(); !slices.Equal(got, want) {
			t.Errorf("%s: told of %v, want %v", what, got, want)
		}
	}
	m.Set(p, withApp(v1.PodPending, v1.ConditionFalse, waits))
	m.Set(p, withApp(v1.PodRunning, v1.ConditionTrue, runs))
	expect("two changes", changed, "u1")
	kept := m.get(t, p)
	m.Set(p, withApp(v1.PodRunning, v1.ConditionTrue, runs))
	expect("no change", changed)
	if diff := cmp.Diff(kept, m.get(t, p)); diff != "" {
		t.Errorf("setting the same status changed it:\n%s", diff)
	}
	cancel()
	m.Remove(p.UID)
	expect("cancelled", changed)
	expect("removed", other, "u1")
	m.Remove(p.UID)
	expect("removed without a status", other, "u1")
	if _, ok := m.Get(p.UID); ok {
		t.Error("a removed pod is still known")
	}
}

func TestWithStatus(t *testing.T) {
	m := newRig()
	p := webPod(v1.RestartPolicyAlways)
	if got := m.WithStatus(p); got != p {
		t.Errorf("without a status it is another pod: %v", got)
	}
	m.Set(p, withApp(v1.PodPending, v1.ConditionFalse, waits))
	if got := m.UIDs(); !slices.Equal(got, []pod.UID{p.UID}) {
		t.Errorf("pods with a status: %v", got)
	}
	first := m.WithStatus(p)
	if first.Status.Phase != v1.PodPending || first.Name != p.Name || p.Status.Phase != "" {
		t.Errorf("shown with phase %q, the pod itself has %q", first.Status.Phase, p.Status.Phase)
	}
	m.Set(p, withApp(v1.PodPending, v1.ConditionFalse, waits))
	if m.WithStatus(p) != first {
		t.Error("a status that changes nothing makes another pod")
	}
	m.Set(p, withApp(v1.PodRunning, v1.ConditionTrue, runs))
	second := m.WithStatus(p)
	if second.Status.Phase != v1.PodRunning || first.Status.Phase != v1.PodPending {
		t.Errorf("after another status: phase %q, and the pod shown before has %q", second.Status.Phase, first.Status.Phase)
	}
	changed := p.DeepCopy()
	changed.Labels = map[string]string{"new": ""}
	for range 2 {
		if got := m.WithStatus(changed); got.Labels == nil || got.Status.Phase != v1.PodRunning {
			t.Errorf("of a pod that has changed: labels %v, phase %q", got.Labels, got.Status.Phase)
		}
		m.Set(changed, withApp(v1.PodRunning, v1.ConditionTrue, runs)) // the same status, of the changed pod
	}
}

func TestCount(t *testing.T) {
	m := newRig()
	for uid, ready := range map[pod.UID]v1.ConditionStatus{"u1": v1.ConditionTrue, "u2": v1.ConditionFalse, "u3": v1.ConditionTrue} {
		p := webPod(v1.RestartPolicyAlways)
		p.UID = uid
		m.Set(p, v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready}}})
	}
	if pods, ready := m.Count(); pods != 3 || ready != 2 {
		t.Errorf("%d pods, %d are ready", pods, ready)
	}
}

func TestTerminated(t *testing.T) {
	p := webPod(v1.RestartPolicyAlways)
	p.Spec.InitContainers = []v1.Container{{Name: "ran"}, {Name: "never"}}
	full := func(initialized v1.ConditionStatus) v1.PodStatus {
		s := withApp(v1.PodRunning, v1.ConditionTrue, runs)
		s.Conditions[0].Status = initialized
		s.ContainerStatuses = append(s.ContainerStatuses, v1.ContainerStatus{Name: "done", State: ended(3)})
		s.InitContainerStatuses = []v1.ContainerStatus{{Name: "ran", State: crashes, LastTerminationState: ended(1)}, {Name: "never", State: waits}}
		return s
	}
	unknown := v1.ContainerStateTerminated{
		Reason: "ContainerStatusUnknown", ExitCode: 137, Message: "The container could not be located when the pod was terminated",
	}

	t.Run("initialized", func(t *testing.T) {
		m := newRig()
		m.Set(p, full(v1.ConditionTrue))
		if m.Finished(p.UID) {
			t.Error("finished before it was terminated")
		}
		m.Terminated(p)
		s := m.get(t, p)
		if s.Phase != v1.PodFailed || !m.Finished(p.UID) {
			t.Errorf("phase %s, finished %v; want Failed, true", s.Phase, m.Finished(p.UID))
		}
		if got := s.ContainerStatuses[0]; got.State.Terminated == nil || *got.State.Terminated != unknown || got.Ready {
			t.Errorf("running container became %+v", got)
		}
		if got := s.ContainerStatuses[1].State.Terminated; got.ExitCode != 3 {
			t.Errorf("exit code of an ended container became %d", got.ExitCode)
		}
		if got := s.InitContainerStatuses[0].State.Terminated; got == nil || *got != unknown {
			t.Errorf("init container that had run became %+v", s.InitContainerStatuses[0].State)
		}
		if got := s.InitContainerStatuses[1].State; got.Waiting == nil {
			t.Errorf("init container that never ran became %+v", got)
		}
		for _, c := range []v1.PodConditionType{v1.PodReady, v1.ContainersReady} {
			if got := conditionOf(s, c); got.Status != v1.ConditionFalse || got.Reason != "PodFailed" {
				t.Errorf("condition is %+v", got)
			}
		}
	})
	t.Run("not initialized", func(t *testing.T) {
		m := newRig()
		s := full(v1.ConditionFalse)
		s.ContainerStatuses[0].State = waits
		m.Set(p, s)
		m.Terminated(p)
		if got := m.get(t, p).ContainerStatuses[0].State; got.Waiting == nil {
			t.Errorf("a container whose turn never came became %+v", got)
		}
	})
	t.Run("succeeded stays", func(t *testing.T) {
		m := newRig()
		m.Set(p, withApp(v1.PodSucceeded, v1.ConditionFalse, ended(0)))
		m.Terminated(p)
		if got := m.get(t, p).Phase; got != v1.PodSucceeded {
			t.Errorf("phase is %s, want Succeeded", got)
		}
	})
	t.Run("static", func(t *testing.T) {
		m, p := newRig(), p.DeepCopy()
		p.Annotations = map[string]string{pod.ConfigSourceAnnotation: string(pod.FileSource)}
		m.Set(p, full(v1.ConditionTrue))
		m.Terminated(p)
		s := m.get(t, p)
		if s.Phase != v1.PodRunning || !m.Finished(p.UID) {
			t.Errorf("phase %s, finished %v; want Running, true", s.Phase, m.Finished(p.UID))
		}
		if got := conditionOf(s, v1.PodReady); got.Status != v1.ConditionFalse || got.Reason != "ContainersNotReady" {
			t.Errorf("condition is %+v", got)
		}
	})
	t.Run("finished without any other change", func(t *testing.T) {
		m := newRig()
		m.Set(p, withApp(v1.PodFailed, v1.ConditionFalse, ended(1)))
		changed, cancel := m.Subscribe()
		defer cancel()
		m.Terminated(p)
		if !m.Finished(p.UID) {
			t.Error("not finished")
		}
		m.Set(p, withApp(v1.PodFailed, v1.ConditionFalse, ended(1)))
		if !m.Finished(p.UID) {
			t.Error("a later status took finished back")
		}
		if n := len(changed.Take()); n > 1 {
			t.Errorf("told of %d pods", n)
		}
	})
	t.Run("never seen", func(t *testing.T) {
		m := newRig()
		m.Terminated(p)
		if got := m.get(t, p).Phase; got != v1.PodFailed {
			t.Errorf("phase is %s, want Failed", got)
		}
	})
}

func TestJournal(t *testing.T) {
	m, p := newRig(), webPod(v1.RestartPolicyAlways)
	m.Set(p, withApp(v1.PodPending, v1.ConditionFalse, waits))
	m.Set(p, withApp(v1.PodRunning, v1.ConditionTrue, runs))
	notReady := withApp(v1.PodRunning, v1.ConditionFalse, ended(7))
	notReady.Conditions[1].Reason, notReady.Conditions[1].Message = "ContainersNotReady", "containers with unready status: [app]"
	m.Set(p, notReady)
	m.Set(p, withApp(v1.PodRunning, v1.ConditionFalse, crashes))
	restarted := withApp(v1.PodRunning, v1.ConditionTrue, runs)
	restarted.ContainerStatuses[0].RestartCount = 1
	m.Set(p, restarted)
	failed := withApp(v1.PodFailed, v1.ConditionFalse, ended(143))
	failed.Reason, failed.Message = "Evicted", "low on memory"
	m.Set(p, failed)
	want := []string{
		"phase Pending",
		"app: running", "phase Pending → Running", "ready",
		"app: terminated with exit code 7 (Error)", "not ready (ContainersNotReady: containers with unready status: [app])",
		"app: waiting: CrashLoopBackOff (back-off 10s)",
		"app: running (restart 1)", "ready",
		"app: terminated with exit code 143 (Error)", "phase Running → Failed (Evicted: low on memory)", "not ready",
	}
	if diff := cmp.Diff(want, m.decisions(p)); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
}
