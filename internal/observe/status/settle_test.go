package status

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A failure that repeats with another ID keeps its message; one of another spec, image or reason
// does not, even if all that differs looks like an ID.
func TestKeepMessages(t *testing.T) {
	id := func(digit string) string { return strings.Repeat(digit, 64) }
	waiting := func(generation int64, image, reason, message string) v1.PodStatus {
		return v1.PodStatus{
			ObservedGeneration: generation,
			ContainerStatuses: []v1.ContainerStatus{{
				Name: "main", Image: image, State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason, Message: message}},
			}},
			Conditions: []v1.PodCondition{{Type: v1.PodReadyToStartContainers, Status: v1.ConditionFalse, Reason: reason, Message: message}},
		}
	}
	before := waiting(1, "app:v20260101", "CreateContainerError", "no container "+id("a"))
	tagged := waiting(1, "app:v20260101", "ImagePullBackOff", "back-off of app:v20260101")
	for name, tc := range map[string]struct {
		old, now v1.PodStatus
		kept     bool
	}{
		"another ID":     {before, waiting(1, "app:v20260101", "CreateContainerError", "no container "+id("b")), true},
		"another reason": {before, waiting(1, "app:v20260101", "RunContainerError", "no container "+id("b")), false},
		"another spec":   {tagged, waiting(2, "app:v20260101", "ImagePullBackOff", "back-off of app:v20260102"), false},
	} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Generation: tc.now.ObservedGeneration}}
		want := tc.now.Conditions[0].Message
		if tc.kept {
			want = tc.old.Conditions[0].Message
		}
		got := settle(p, *tc.old.DeepCopy(), *tc.now.DeepCopy(), metav1.Now())
		if text := got.ContainerStatuses[0].State.Waiting.Message; text != want {
			t.Errorf("%s: the container's message is %q, want %q", name, text, want)
		}
		if text := findCondition(got.Conditions, v1.PodReadyToStartContainers).Message; text != want {
			t.Errorf("%s: the condition's message is %q, want %q", name, text, want)
		}
	}
	// An API server that counts no generations.
	tagged.ObservedGeneration = 0
	got := settle(&v1.Pod{}, tagged, waiting(0, "app:v20260102", "ImagePullBackOff", "back-off of app:v20260102"), metav1.Now())
	if text := got.ContainerStatuses[0].State.Waiting.Message; text != "back-off of app:v20260102" {
		t.Errorf("another image: %q", text)
	}
}
