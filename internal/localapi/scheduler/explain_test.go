package scheduler_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/explain"
	"berth/internal/localapi/scheduler"
)

// A pod that is held is explained by the numbers of the node, by the pods that use it, and by those
// that are ahead; after it is bound, there is nothing to explain.
func TestExplain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode())
		s, _ := w.start()
		w.put(newPod("first", "cpu", "1500m"))
		w.put(newPod("older", "cpu", "1"))
		w.put(newPod("held", "cpu", "1"))
		w.put(with(newPod("urgent", "cpu", "2"), priority(10)))
		synctest.Wait()
		u, err := s.Explain("default", "held")
		if err != nil {
			t.Fatal(err)
		}
		want := []explain.SchedulingReason{{Rule: "NodeResourcesFit", Shortage: &explain.Shortage{
			Resource: v1.ResourceCPU, Requested: 1000, Used: 1500, Allocatable: 2000, Users: []explain.ResourceUser{{Pod: "default/first", Amount: 1500}},
		}}}
		if diff := cmp.Diff(want, u.Reasons); diff != "" {
			t.Errorf("reasons (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"default/older", "default/urgent"}, u.Ahead); diff != "" {
			t.Errorf("ahead (-want +got):\n%s", diff)
		}
		if u.Pod.Name != "held" {
			t.Errorf("pod %s", u.Pod.Name)
		}
		names := map[string]bool{}
		unbound, err := s.Unbound()
		for _, p := range unbound {
			names[p.Name] = true
		}
		if diff := cmp.Diff(map[string]bool{"held": true, "older": true, "urgent": true}, names); diff != "" || err != nil {
			t.Errorf("unbound: %v (-want +got):\n%s", err, diff)
		}
		for _, name := range []string{"first", "none"} {
			if u, err := s.Explain("default", name); u != nil || err != nil {
				t.Errorf("%s is explained: %+v, %v", name, u, err)
			}
		}
	})
}

func TestExplainDetails(t *testing.T) {
	end := metav1.NewTime(time.Date(2000, 1, 1, 0, 0, 30, 0, time.UTC))
	ending := func(p *v1.Pod) { p.DeletionTimestamp = &end }
	web := hostPort(v1.ContainerPort{HostPort: 80, ContainerPort: 80})
	since := func(n *v1.Node) { n.Status.Conditions[len(n.Status.Conditions)-1].LastTransitionTime = end }
	for name, test := range map[string]struct {
		pod    *v1.Pod
		node   *v1.Node
		pods   []*v1.Pod
		claims []*v1.PersistentVolumeClaim
		want   explain.SchedulingReason
	}{
		"no node": {pod: newPod("p"), want: explain.SchedulingReason{Rule: "Node", Detail: "the Node of this machine is not registered", Awaited: "the Node is registered"}},
		"gates": {
			pod:  with(newPod("p"), func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "a"}, {Name: "b"}} }),
			want: explain.SchedulingReason{Rule: "SchedulingGates", Detail: "it has the scheduling gates a, b", Awaited: "its scheduling gates are removed (a, b), which their controllers do"},
		},
		"another scheduler": {
			pod:  with(newPod("p"), func(p *v1.Pod) { p.Spec.SchedulerName = "mine" }),
			want: explain.SchedulingReason{Rule: "schedulerName", Detail: `its schedulerName is "mine", and this node has "default-scheduler" alone`, Awaited: `scheduler "mine" binds it`},
		},
		"deleted": {
			pod:  with(newPod("p"), ending, func(p *v1.Pod) { p.Finalizers = []string{"a.b/c"} }),
			want: explain.SchedulingReason{Rule: "Deletion", Detail: "it is deleted, and its finalizers keep it: a.b/c"},
		},
		"pod that ends": {
			pod: newPod("p", "cpu", "1"), node: newNode(), pods: []*v1.Pod{newPod("small", "cpu", "500m"), with(newPod("big", "cpu", "1"), ending)},
			want: explain.SchedulingReason{Rule: "NodeResourcesFit", Shortage: &explain.Shortage{
				Resource: v1.ResourceCPU, Requested: 1000, Used: 1500, Allocatable: 2000,
				Users: []explain.ResourceUser{{Pod: "default/big", Amount: 1000, Until: end.Time}, {Pod: "default/small", Amount: 500}},
			}},
		},
		"cordoned": {
			pod: newPod("p"), node: newNode(cordoned),
			want: explain.SchedulingReason{Rule: "NodeUnschedulable", Detail: "node n1 is cordoned (spec.unschedulable)", Awaited: "the node is uncordoned (kubectl uncordon n1)"},
		},
		"taint": {
			pod: newPod("p"), node: newNode(tainted(v1.Taint{Key: "a", Value: "b", Effect: v1.TaintEffectNoSchedule})),
			want: explain.SchedulingReason{
				Rule: "TaintToleration", Detail: "node n1 has the taint a=b:NoSchedule, which the pod does not tolerate",
				Awaited: "the taint is removed, or the pod gets a toleration for it",
			},
		},
		"pressure": {
			pod: newPod("p"), node: newNode(pressed(v1.NodeDiskPressure), since),
			want: explain.SchedulingReason{
				Rule: "TaintToleration", Detail: "node n1 has DiskPressure since 2000-01-01T00:00:30Z, which the pod does not tolerate", Awaited: "the pressure is over",
			},
		},
		"labels": {
			pod: with(newPod("p"), func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }, affinity(v1.NodeSelectorTerm{MatchExpressions: in("zone", "a")})),
			node: newNode(func(n *v1.Node) {
				n.Labels["zone"] = "c"
			}),
			want: explain.SchedulingReason{
				Rule: "NodeAffinity", Detail: "it wants a node with disk=ssd and zone In (a); node n1 has no label disk, zone=c", Awaited: "the node has such labels",
			},
		},
		"port": {
			pod: with(newPod("p"), web), node: newNode(), pods: []*v1.Pod{with(newPod("o"), web)},
			want: explain.SchedulingReason{Rule: "NodePorts", Detail: "pod default/o has host port 80/TCP", Awaited: "pod default/o has ended"},
		},
		"no claim": {
			pod: with(newPod("p"), claimed("v")), node: newNode(),
			want: explain.SchedulingReason{Rule: "VolumeBinding", Detail: `PersistentVolumeClaim "v" does not exist`, Awaited: `the PersistentVolumeClaim "v" exists`},
		},
		"lost claim": {
			pod: with(newPod("p"), claimed("v")), node: newNode(), claims: []*v1.PersistentVolumeClaim{newClaim("v", "", v1.ClaimLost)},
			want: explain.SchedulingReason{
				Rule: "VolumeBinding", Detail: `PersistentVolumeClaim "v" is Lost: PersistentVolume "gone" is gone`,
				Awaited: `the PersistentVolumeClaim "v" is deleted, created again and bound`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			claim := func(namespace, name string) (*v1.PersistentVolumeClaim, error) {
				for _, c := range test.claims {
					if c.Namespace == namespace && c.Name == name {
						return c, nil
					}
				}
				return nil, nil
			}
			got, err := scheduler.Filters{}.Explain(scheduler.Snapshot{Node: test.node, Pods: test.pods, Claim: claim}, test.pod)
			if diff := cmp.Diff([]explain.SchedulingReason{test.want}, got); diff != "" || err != nil {
				t.Errorf("reasons: %v (-want +got):\n%s", err, diff)
			}
		})
	}
}
