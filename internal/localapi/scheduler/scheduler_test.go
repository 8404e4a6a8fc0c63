package scheduler_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/internal/explain"
	"berth/internal/localapi/store"
	"berth/internal/record/journal"
)

const (
	noCPU     = "0/1 nodes are available: 1 Insufficient cpu." + noVictims
	bigCPU    = "0/1 nodes are available: 1 Insufficient cpu." + noPreemption
	unsched   = "0/1 nodes are available: 1 node(s) were unschedulable." + noPreemption
	untol     = "0/1 nodes are available: 1 node(s) had untolerated taint(s)." + noPreemption
	unmatched = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector." + noPreemption
)

// held and bound are the writes for a pod.
func held(pod, message string) []string {
	return []string{"hold " + pod, "event " + pod + ": Warning FailedScheduling " + message}
}

func bound(pod string) []string {
	return []string{"bind " + pod, fmt.Sprintf("event %s: Normal Scheduled Successfully assigned default/%s to %s", pod, pod, node)}
}

func join(calls ...[]string) (all []string) {
	for _, c := range calls {
		all = append(all, c...)
	}
	return all
}

func succeed(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded }

// A pod that does not fit is held until one before it terminates, and then it is bound.
func TestPodWaitsForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode(func(n *v1.Node) { n.Labels[v1.LabelTopologyZone] = "z" }))
		w.start()
		w.put(newPod("first", "cpu", "1500m"))
		w.expect(bound("first")...)
		w.put(newPod("second", "cpu", "1"))
		w.expect(held("second", noCPU)...)
		p := w.pod("second")
		since := metav1.NewTime(time.Now().Truncate(time.Second))
		want := []v1.PodCondition{{
			Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: "Unschedulable", Message: noCPU, ObservedGeneration: 1, LastTransitionTime: since,
		}}
		if diff := cmp.Diff(want, p.Status.Conditions, cmpopts.EquateApproxTime(0)); diff != "" || p.Spec.NodeName != "" || p.Status.Phase != v1.PodPending {
			t.Errorf("conditions (-want +got): %s\nnode %q, phase %s", diff, p.Spec.NodeName, p.Status.Phase)
		}
		e, _ := find[*v1.Event](w, "events", "default", w.events("second")[0].Name)
		if e.Action != "Scheduling" || e.ReportingController != "default-scheduler" || e.ReportingInstance != "default-scheduler-n1" || e.InvolvedObject.UID != p.UID || e.EventTime.IsZero() || e.Count != 0 {
			t.Errorf("event = %+v", e)
		}

		time.Sleep(time.Minute)
		w.editPod("first", succeed)
		w.expect(bound("second")...)
		p = w.pod("second")
		want = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().Truncate(time.Second))}}
		if diff := cmp.Diff(want, p.Status.Conditions, cmpopts.EquateApproxTime(0)); diff != "" || p.Spec.NodeName != node || p.Labels[v1.LabelTopologyZone] != "z" || p.Generation != 1 {
			t.Errorf("conditions (-want +got): %s\nnode %q, labels %v, generation %d", diff, p.Spec.NodeName, p.Labels, p.Generation)
		}
		time.Sleep(time.Hour)
		w.expect()
	})
}

// Of the pods that wait, those of higher priority are bound first, then older ones; one that does
// not fit lets others pass.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode())
		w.start()
		w.put(newPod("first", "cpu", "2"))
		w.expect(bound("first")...)
		w.put(newPod("young", "cpu", "1"))
		w.put(newPod("a-younger", "cpu", "1"))
		w.put(with(newPod("important", "cpu", "1"), priority(10)))
		w.put(with(newPod("too-big", "cpu", "3"), priority(20)))
		w.put(with(newPod("critical", "cpu", "2500m"), priority(2000000000)))
		w.expect(join(held("young", noCPU), held("a-younger", noCPU), held("important", noCPU), held("too-big", bigCPU), held("critical", bigCPU))...)
		w.remove(podKey("first"))
		w.expect(join(bound("important"), bound("young"))...)
		w.editPod("important", func(p *v1.Pod) { p.Status.Phase = v1.PodFailed })
		w.expect(bound("a-younger")...)
	})
}

// Pods that arrive together are bound in their order, too.
func TestOrderOfArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode())
		w.put(newPod("b", "cpu", "1"))
		w.put(newPod("a", "cpu", "1"))
		w.put(with(newPod("c", "cpu", "1"), priority(1)))
		w.start()
		w.expect(join(bound("c"), bound("b"), held("a", noCPU))...)
	})
}

// Pods of the same second are bound in the order in which they arrived.
func TestOrderWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode())
		w.start()
		w.put(newPod("first", "cpu", "2"))
		w.expect(bound("first")...)
		for _, name := range []string{"b", "c", "a"} {
			if err := w.write(newPod(name, "cpu", "2"), 0); err != nil {
				t.Fatal(err)
			}
		}
		w.expect(join(held("b", noCPU), held("c", noCPU), held("a", noCPU))...)
		for _, names := range [][2]string{{"first", "b"}, {"b", "c"}, {"c", "a"}} {
			w.editPod(names[0], succeed)
			w.expect(bound(names[1])...)
		}
	})
}

// Each change of the node by which a pod may fit is noticed, and heartbeats cost no cycle.
func TestNodeChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		w.put(newPod("early"))
		w.expect(held("early", "no nodes available to schedule pods")...)
		w.put(newNode())
		w.expect(bound("early")...)

		for _, test := range []struct {
			name, message string
			pod           func(*v1.Pod)
			hold, release func(*v1.Node)
		}{
			{"cordoned", unsched, nil, cordoned, func(n *v1.Node) { n.Spec.Unschedulable = false }},
			{"tainted", untol, nil, tainted(v1.Taint{Key: "only", Value: "ci", Effect: v1.TaintEffectNoSchedule}), tainted()},
			{"pressed", untol, nil, pressed(v1.NodeDiskPressure), func(n *v1.Node) { n.Status.Conditions = nil }},
			{"selecting", unmatched, func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }, func(*v1.Node) {}, func(n *v1.Node) { n.Labels["disk"] = "ssd" }},
			{
				"large", bigCPU, func(p *v1.Pod) { p.Spec.Containers[0].Resources.Requests = quantities("cpu", "3") }, func(*v1.Node) {},
				func(n *v1.Node) { n.Status.Allocatable[v1.ResourceCPU] = *newNode().Status.Allocatable.Memory() },
			},
		} {
			w.editNode(test.hold)
			p := newPod(test.name)
			if test.pod != nil {
				test.pod(p)
			}
			w.put(p)
			w.expect(held(test.name, test.message)...)
			w.editNode(func(n *v1.Node) { n.Status.NodeInfo.KernelVersion += "x" })
			w.expect()
			w.editNode(test.release)
			w.expect(bound(test.name)...)
			w.editPod(test.name, succeed)
		}
	})
}

// records returns what the journal has of a pod: the seconds since a time, and the decision.
func (w *world) records(name string, since time.Time) (out []string) {
	for _, e := range w.journal.Read("default", name) {
		out = append(out, fmt.Sprintf("%d %s %s: %s x%d", int(e.Time.Sub(since).Seconds()), e.Component, e.Decision, e.Why, max(e.Count, 1)))
	}
	return out
}

// The journal has each reason of a wait once, however often the pod is tried, over a restart too,
// and its end. Of a pod that did not wait it has nothing.
func TestJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode())
		_, stop := w.start()
		w.put(newPod("first", "cpu", "2"))
		w.put(newPod("small"))
		w.put(newPod("waiting", "cpu", "1"))
		start := time.Now()
		for range 3 {
			time.Sleep(time.Minute)
			w.editPod("small", func(p *v1.Pod) {
				p.Spec.Containers[0].Resources.Requests = quantities("memory", fmt.Sprint(time.Now().Unix()))
			})
		}
		stop()
		time.Sleep(time.Minute)
		w.start()
		time.Sleep(time.Hour)
		w.remove(w.events("waiting")[0])
		time.Sleep(time.Minute)
		w.editNode(cordoned)
		time.Sleep(time.Minute)
		w.editPod("first", succeed)
		w.editNode(func(n *v1.Node) { n.Spec.Unschedulable = false })
		synctest.Wait()
		want := []string{
			"0 scheduler FailedScheduling: " + noCPU + " x1", "3900 scheduler FailedScheduling: " + unsched + " x1", "3960 scheduler bind to node n1: it fits now x1",
		}
		if diff := cmp.Diff(want, w.records("waiting", start)); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
		for _, name := range []string{"first", "small"} {
			if got := w.records(name, start); got != nil {
				t.Errorf("records of %s: %v", name, got)
			}
		}
		story := w.journal.Stories("default", "waiting")[0]
		if len(story.Milestones) != 1 || story.Milestones[0].Step != journal.Bound || int(story.Milestones[0].Time.Sub(start).Seconds()) != 3960 {
			t.Errorf("milestones: %+v", story.Milestones)
		}
	})
}

// A shutdown of the machine holds pods also when there is room for them, whatever they tolerate,
// and they are bound when it is cancelled.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode())
		s, _ := w.start()
		w.put(newPod("first", "cpu", "2"))
		w.put(newPod("waiting", "cpu", "1"))
		w.expect(join(bound("first"), held("waiting", noCPU))...)
		time.Sleep(time.Minute)
		w.shutDown(s, time.Now())
		w.expect(held("waiting", untol)...)
		w.editPod("first", succeed)
		w.put(with(newPod("tolerant"), tolerating(v1.Toleration{Operator: v1.TolerationOpExists})))
		w.expect(held("tolerant", untol)...)
		u, err := s.Explain("default", "waiting")
		if err != nil || len(u.Reasons) != 1 || u.Reasons[0].Rule != explain.RuleNodeShutdown {
			t.Errorf("explained by %+v, %v", u.Reasons, err)
		}
		time.Sleep(time.Hour)
		w.expect()
		w.shutDown(s, time.Time{})
		w.expect(join(bound("waiting"), bound("tolerant"))...)
	})
}

// A pod is held for its claims, and bound when they are.
func TestClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode())
		w.start()
		w.put(with(newPod("p"), claimed("v")))
		w.expect(held("p", `0/1 nodes are available: persistentvolumeclaim "v" not found. not found`)...)
		time.Sleep(time.Minute)
		w.put(newClaim("v", "", v1.ClaimPending))
		w.expect(held("p", "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found")...)
		c, revision := find[*v1.PersistentVolumeClaim](w, "persistentvolumeclaims", "default", "v")
		c.Status.Phase = v1.ClaimBound
		if err := w.write(c, revision); err != nil {
			t.Fatal(err)
		}
		w.expect(bound("p")...)
	})
}

// Pods that are not this scheduler's to bind are left alone.
func TestOtherPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode())
		w.start()
		w.put(with(newPod("other-scheduler"), func(p *v1.Pod) { p.Spec.SchedulerName = "mine" }))
		w.put(with(newPod("other-node", "cpu", "2"), func(p *v1.Pod) { p.Spec.NodeName = "elsewhere" }))
		w.put(with(newPod("ending"), func(p *v1.Pod) { p.DeletionTimestamp, p.Finalizers = new(metav1.Now()), []string{"example.com/f"} }))
		w.put(with(newPod("failed"), func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }))
		w.put(with(newPod("refused-manifest"), func(p *v1.Pod) { p.Spec, p.Status.Reason = v1.PodSpec{}, "InvalidManifest" }))
		gate := func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/g"}} }
		w.put(with(newPod("gated", "cpu", "2"), gate))
		w.expect()
		w.editPod("gated", func(p *v1.Pod) { p.Spec.SchedulingGates = nil })
		w.expect(bound("gated")...)
		w.put(with(newPod("named", "cpu", "1"), func(p *v1.Pod) { p.Spec.SchedulerName = "default-scheduler" }))
		w.expect(held("named", noCPU)...)
	})
}

// A pod that is deleted while it waits is not bound, nor is one of the same name in its place.
func TestPodIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode())
		w.start()
		w.put(newPod("first", "cpu", "2"))
		w.put(newPod("second", "cpu", "1"))
		w.expect(join(bound("first"), held("second", noCPU))...)
		w.remove(podKey("second"))
		w.editPod("first", succeed)
		w.expect()

		// It is replaced while its binding is written.
		w.failing(func(call string) error {
			if call == "bind third" {
				w.failing(nil)
				w.remove(podKey("third"))
				w.put(with(newPod("third", "cpu", "1"), func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "g"}} }))
			}
			return nil
		})
		w.put(newPod("third", "cpu", "1"))
		time.Sleep(2 * time.Second)
		w.expect("bind third")
		if p := w.pod("third"); p.Spec.NodeName != "" {
			t.Errorf("a gated pod was bound in the place of another: %+v", p.Spec)
		}
		w.remove(podKey("third"))
		w.put(newPod("third", "cpu", "1"))
		w.expect(bound("third")...)
	})
}

// A pod that a client changes while its binding is written is bound as it is then.
func TestConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode())
		s, _ := w.start()
		w.failing(func(call string) error {
			if call == "bind p" {
				w.failing(nil)
				w.editPod("p", func(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} })
			}
			return nil
		})
		w.put(newPod("p", "cpu", "2"))
		w.expect(join([]string{"bind p"}, bound("p"))...)
		if p := w.pod("p"); p.Labels["a"] != "b" || p.Spec.NodeName != node {
			t.Errorf("pod = %+v", p)
		}
		if err := s.Health(); err != nil {
			t.Error(err)
		}
	})
}

// A binding that fails is retried, and reported until it is done. It takes nothing of the node.
func TestBindingFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode())
		s, _ := w.start()
		w.failing(func(call string) error {
			if call == "bind p" {
				return errors.New("disk is full")
			}
			return nil
		})
		w.put(newPod("p", "cpu", "2"))
		synctest.Wait()
		if err := w.write(newPod("q", "cpu", "2"), 0); err != nil {
			t.Fatal(err)
		}
		w.expect(append([]string{"bind p", "bind p"}, bound("q")...)...)
		if err := s.Health(); err == nil || err.Error() != "scheduler: nodes/n1: schedule pod default/p: disk is full" {
			t.Errorf("health: %v", err)
		}
		w.failing(nil)
		w.remove(podKey("q"))
		w.expect(bound("p")...)
		time.Sleep(time.Minute)
		if err := s.Health(); err != nil {
			t.Error(err)
		}
	})
}

// An event that cannot be written does not keep a pod from being bound.
func TestEventFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode())
		w.start()
		w.failing(func(call string) error {
			if call != "bind p" {
				return apierrors.NewConflict(schema.GroupResource{}, "e", errors.New("there"))
			}
			return nil
		})
		w.put(newPod("p"))
		w.expect(bound("p")...)
		if p := w.pod("p"); p.Spec.NodeName != node {
			t.Errorf("node = %q", p.Spec.NodeName)
		}
	})
}

// After a restart, pods that were held are decided about. The same reason is not reported again.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode())
		_, stop := w.start()
		w.put(newPod("first", "cpu", "2"))
		w.put(newPod("second", "cpu", "1"))
		w.put(newPod("third", "cpu", "3"))
		w.expect(join(bound("first"), held("second", noCPU), held("third", bigCPU))...)
		stop()
		w.editPod("first", succeed)
		w.start()
		w.expect(bound("second")...)
	})
}

// The reason of a pod that waits for hours stays visible: its event is written again when it is
// deleted. The condition stays as it is.
func TestEventIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode())
		_, stop := w.start()
		w.put(newPod("p", "cpu", "3"))
		w.expect(held("p", bigCPU)...)
		before := w.pod("p").ResourceVersion
		for _, restart := range []bool{false, true} {
			if restart {
				stop()
				w.start()
			}
			time.Sleep(time.Hour)
			w.remove(w.events("p")[0])
			w.expect(held("p", bigCPU)[1])
		}
		if now := w.pod("p").ResourceVersion; now != before {
			t.Errorf("version %s, was %s", now, before)
		}
		w.editNode(func(n *v1.Node) { n.Status.Allocatable[v1.ResourceCPU] = *newNode().Status.Allocatable.Memory() })
		w.expect(bound("p")...)
		for _, key := range w.events("p") {
			w.remove(key)
		}
		w.expect()
	})
}

// A reason that changes often is reported every ten seconds, at last as it is.
func TestReasonChangesOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode())
		w.start()
		w.put(newPod("p", "cpu", "3"))
		w.expect(held("p", bigCPU)...)
		for range 8 { // seconds
			w.editNode(func(n *v1.Node) { n.Spec.Unschedulable = !n.Spec.Unschedulable })
			time.Sleep(time.Second)
		}
		w.editNode(cordoned)
		w.expect()
		time.Sleep(2 * time.Second)
		w.expect(held("p", unsched)...)
		time.Sleep(time.Hour)
		w.expect()
		if c := w.condition("p"); c != "False Unschedulable "+unsched {
			t.Errorf("condition = %s", c)
		}
	})
}

// The reason is reported for each generation, and again if its condition is lost.
func TestConditionIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode(tainted(v1.Taint{Key: "only", Effect: v1.TaintEffectNoSchedule})))
		w.start()
		w.put(newPod("p", "cpu", "3"))
		w.expect(held("p", untol)...)
		time.Sleep(time.Minute)
		w.editPod("p", func(p *v1.Pod) { p.Generation, p.Spec.Tolerations = 2, []v1.Toleration{existing("only")} })
		w.expect(held("p", bigCPU)...)
		time.Sleep(time.Minute)
		w.editPod("p", func(p *v1.Pod) { p.Status.Conditions = nil })
		w.expect(held("p", bigCPU)...)
	})
}

// An object that cannot be decoded keeps no other pod from being bound.
func TestBrokenObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode())
		w.start()
		if _, err := w.store.Write(store.Key{Resource: "pods", Namespace: "default", Name: "broken"}, 0, []byte("nonsense")); err != nil {
			t.Fatal(err)
		}
		w.put(newPod("p"))
		w.expect(bound("p")...)
	})
}
