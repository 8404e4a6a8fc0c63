package explain

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/source/manifest"
)

func TestVerdicts(t *testing.T) {
	now := time.Date(2000, 1, 1, 0, 1, 0, 0, time.UTC)
	subject := journal.Subject{UID: "1", Namespace: "default", Name: "web"}
	waiting := func(reason string) v1.ContainerState {
		return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}
	}
	for _, c := range []struct {
		verdict Verdict
		phase   v1.PodPhase // "" without a pod
		state   v1.ContainerState
		change  func(*Report)
		text    string
	}{
		{"Removed", "", v1.ContainerState{}, func(*Report) {}, "Pod default/web is gone."},
		{"ManifestRejected", "", v1.ContainerState{}, func(r *Report) {
			r.Stories[0].Subject = journal.Subject{Name: "web.yaml"}
			r.Problems = []manifest.Problem{{Severity: manifest.SeverityError, Message: "no image"}}
		}, "Manifest web.yaml is refused: no image"},
		{"Unscheduled", v1.PodPending, v1.ContainerState{}, func(r *Report) { r.Unbound = &Unbound{UID: "1"} }, "Pod default/web waits to be bound to a node."},
		{"Quarantined", v1.PodRunning, v1.ContainerState{}, func(r *Report) { r.Quarantined = map[pod.UID]string{"1": "panic"} }, "Pod default/web is set aside: the agent crashed again and again with it in hand. " +
			"Its containers go on, and nothing is done for it until its spec changes or `berth release default/web` lets go of it. The crash: panic"},
		{"Succeeded", v1.PodSucceeded, v1.ContainerState{}, func(*Report) {}, "Pod default/web has completed: all its containers ended with code 0."},
		{"Failed", v1.PodFailed, v1.ContainerState{}, func(r *Report) { r.Pods[0].Status.Reason = "Evicted" }, "Pod default/web has failed: Evicted."},
		{"Terminating", v1.PodRunning, v1.ContainerState{}, func(r *Report) { r.Pods[0].DeletionTimestamp = &metav1.Time{Time: now} }, "Pod default/web is ending."},
		{"Starting", v1.PodPending, waiting("ContainerCreating"), func(*Report) {}, "Pod default/web is starting, since 60s: it has not been admitted yet."},
		{"CrashLoop", v1.PodRunning, waiting("CrashLoopBackOff"), func(*Report) {}, `Pod default/web is waiting: container "main" is in a crash loop, with 0 restarts so far.`},
		{"NoImage", v1.PodPending, waiting("ErrImagePull"), func(*Report) {}, `Pod default/web is waiting: the image of container "main", a:1, is not available (ErrImagePull):.`},
		{"NotStarted", v1.PodPending, waiting("CreateContainerError"), func(*Report) {}, `Pod default/web is waiting: container "main" cannot be started (CreateContainerError):.`},
		{"NotReady", v1.PodRunning, v1.ContainerState{Running: &v1.ContainerStateRunning{}}, func(*Report) {}, `Pod default/web runs and is not ready: container "main" is not ready.`},
		{"Ready", v1.PodRunning, v1.ContainerState{Running: &v1.ContainerStateRunning{}}, func(r *Report) {
			r.Pods[0].Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Second))}}
		}, "Pod default/web is ready, since 1s."},
	} {
		r := Report{Stories: []journal.Timeline{{Subject: subject, Seen: now.Add(-time.Minute)}}}
		if c.phase != "" {
			r.Pods = []*v1.Pod{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1"},
				Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: "a:1"}}},
				Status:     v1.PodStatus{Phase: c.phase, ContainerStatuses: []v1.ContainerStatus{{Name: "main", State: c.state}}},
			}}
		}
		c.change(&r)
		a := Explain(r, now, time.UTC)
		equal(t, "verdict", string(c.verdict), string(a.Verdict))
		equal(t, string(c.verdict), c.text, a.Text)
	}
}
