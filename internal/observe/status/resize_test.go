package status

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/pod/allocation"
)

func TestResizeConditions(t *testing.T) {
	pending := &allocation.Pending{Reason: v1.PodReasonDeferred, Message: "no room", Generation: 4}
	waits := v1.PodCondition{Type: v1.PodResizePending, Status: "True", Reason: "Deferred", Message: "no room", ObservedGeneration: 4}
	for name, tc := range map[string]struct {
		resize allocation.Resize
		phase  v1.PodPhase
		want   []v1.PodCondition
	}{
		"none":        {resize: allocation.Resize{Generation: 3}},
		"waits":       {resize: allocation.Resize{Pending: pending}, want: []v1.PodCondition{waits}},
		"under way":   {resize: allocation.Resize{InProgress: true, Generation: 3}, want: []v1.PodCondition{{Type: v1.PodResizeInProgress, Status: "True", ObservedGeneration: 3}}},
		"has failed":  {resize: allocation.Resize{InProgress: true, Generation: 3, Error: "e", RetryAt: time.Unix(1, 0)}, want: []v1.PodCondition{{Type: v1.PodResizeInProgress, Status: "True", Reason: "Error", Message: "e", ObservedGeneration: 3}}},
		"both":        {resize: allocation.Resize{Pending: pending, InProgress: true, Generation: 3}, want: []v1.PodCondition{waits, {Type: v1.PodResizeInProgress, Status: "True", ObservedGeneration: 3}}},
		"it is ended": {resize: allocation.Resize{Pending: pending, InProgress: true}, phase: v1.PodFailed},
	} {
		p := newPod()
		p.Status.Phase = tc.phase
		s := Generate(Input{Pod: p, Observed: observed(seen("app", 0, pod.StateRunning)), Old: p.Status, Resize: tc.resize})
		var got []v1.PodCondition
		for _, c := range s.Conditions {
			if c.Type == v1.PodResizePending || c.Type == v1.PodResizeInProgress {
				c.LastTransitionTime = metav1.Time{}
				got = append(got, c)
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}

// What a running container has while its pod is resized is told beside what it was given; one that
// does not run has what it was given.
func TestResizedResources(t *testing.T) {
	ask := func(cpu string) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}
			p.Spec.Resources = p.Spec.Containers[0].Resources.DeepCopy()
		}
	}
	for _, state := range []pod.ContainerState{pod.StateRunning, pod.StateExited} {
		s := Generate(Input{Pod: newPod(ask("2")), Actuated: newPod(ask("1")), Observed: observed(seen("app", 0, state))})
		c := s.ContainerStatuses[0]
		want := map[pod.ContainerState]string{pod.StateRunning: "2 1", pod.StateExited: "2 2"}[state]
		if got := c.AllocatedResources.Cpu().String() + " " + c.Resources.Requests.Cpu().String(); got != want {
			t.Errorf("%s: given and had are %s, want %s", state, got, want)
		}
		if got := s.AllocatedResources.Cpu().String() + " " + s.Resources.Requests.Cpu().String(); got != "2 1" {
			t.Errorf("%s: given to the pod and had are %s, want 2 1", state, got)
		}
	}
}
