package explain

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/record/journal"
)

// A pod that waits for several resources, of which one is that of a pod that is being deleted.
func TestUnboundWaitsForAnEnd(t *testing.T) {
	now := time.Date(2000, 1, 1, 0, 0, 10, 0, time.UTC)
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1", CreationTimestamp: metav1.NewTime(now.Add(-5 * time.Second))}}
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes are available."}}
	users := []ResourceUser{
		{Pod: "default/a", Amount: 2 << 30, Until: now.Add(20 * time.Second)}, {Pod: "default/b", Amount: 1 << 30}, {Pod: "default/c", Amount: 1}, {Pod: "default/d", Amount: 1},
	}
	e := Report{
		Pods:    []*v1.Pod{p},
		Stories: []journal.Timeline{{Subject: journal.Subject{UID: "1", Namespace: "default", Name: "web"}, Seen: p.CreationTimestamp.Time}},
		Unbound: &Unbound{UID: "1", Ahead: []string{"default/1", "default/2", "default/3", "default/4"}, Reasons: []SchedulingReason{
			{Rule: "NodeResourcesFit", Shortage: &Shortage{Resource: v1.ResourceMemory, Requested: 2 << 30, Used: 3<<30 + 2, Allocatable: 4 << 30, Users: users}},
			{Rule: "NodeResourcesFit", Shortage: &Shortage{Resource: "example.com/gpu", Requested: 2, Used: 1, Allocatable: 2}},
			{Rule: "NodeResourcesFit", Shortage: &Shortage{Resource: v1.ResourcePods, Requested: 1, Used: 110, Allocatable: 110}},
		}},
	}
	a := Explain(e, now, time.UTC)
	equal(t, "text", "Pod default/web waits to be bound to a node, since 5s: Unschedulable: 0/1 nodes are available. "+
		"NodeResourcesFit: it asks for 2 GiB of memory; 1 GiB of 4 GiB are free; default/a has 2 GiB, default/b has 1 GiB, default/c has 1 B, 1 other pod. "+
		"NodeResourcesFit: it asks for 2 example.com/gpu; 1 of 2 are free. NodeResourcesFit: it asks for a place for a pod; 0 of 110 are free.", a.Text)
	equal(t, "first", "at 00:00:30, in 20s: the grace period of pod default/a is over, which is being deleted and has 2 GiB of memory", a.Next[0])
	equal(t, "second", "as soon as 2 GiB of memory are free and 2 example.com/gpu are free and one of its pods has ended: the pod is bound then, "+
		"by priority (its is 0), then by age; no pod is ended for it; ahead of it, if they fit: default/1, default/2, default/3, 1 more", a.Next[1])
}

func equal(t *testing.T, what, want, got string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %s\nwant %s", what, got, want)
	}
}
