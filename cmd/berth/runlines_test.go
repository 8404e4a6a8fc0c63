package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/api/server"
)

// A pod has its first line when the agent has looked at it, or refuses it, and another with each
// change.
func TestPodLines(t *testing.T) {
	var out strings.Builder
	v := newLineView(server.Handlers{}, hints{}, &out)
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	refused := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "big", Namespace: "default", UID: "b"}, Status: v1.PodStatus{Phase: v1.PodFailed, Reason: "OutOfcpu"}}
	seen := p.DeepCopy()
	seen.Status = v1.PodStatus{Phase: v1.PodPending, Conditions: []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue}}}
	for _, c := range []struct {
		pods []*v1.Pod
		want string // words of the lines that come
	}{
		{[]*v1.Pod{p}, ""},
		{[]*v1.Pod{p, refused}, "big OutOfcpu 0/0"},
		{[]*v1.Pod{seen, refused}, "web Pending 0/1"},
		{[]*v1.Pod{seen, refused}, ""},
		{[]*v1.Pod{refused}, "web Gone"},
	} {
		out.Reset()
		if err := v.refresh(c.pods, nil, time.Now()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, strings.Join(strings.Fields(out.String()), " ")); diff != "" {
			t.Errorf("lines (-want +got):\n%s", diff)
		}
	}
}
