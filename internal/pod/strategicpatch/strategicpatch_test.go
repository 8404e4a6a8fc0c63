package strategicpatch

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

func condition(kind v1.NodeConditionType, status v1.ConditionStatus, reason string) v1.NodeCondition {
	return v1.NodeCondition{Type: kind, Status: status, Reason: reason, LastHeartbeatTime: metav1.Unix(1e9, 0)}
}

// Each change, put into a patch here and applied by the library that the server uses, gives the
// changed object.
func TestGeneratePatchIsWhatTheServerApplies(t *testing.T) {
	base := func() *v1.Node {
		return &v1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: "n", Labels: map[string]string{"a": "1", "b": "2"}, Finalizers: []string{"f", "g"},
				OwnerReferences: []metav1.OwnerReference{{UID: "u", Name: "o"}},
			},
			Spec: v1.NodeSpec{
				PodCIDR: "10.0.0.0/24", PodCIDRs: []string{"10.0.0.0/24"},
				Taints: []v1.Taint{{Key: "t", Effect: v1.TaintEffectNoSchedule}},
			},
			Status: v1.NodeStatus{
				Capacity:   v1.ResourceList{"cpu": quantity.MustParse("2"), "memory": quantity.MustParse("1Gi")},
				Conditions: []v1.NodeCondition{condition("Ready", "True", "ok"), condition("Disk", "False", "")},
				Addresses:  []v1.NodeAddress{{Type: "InternalIP", Address: "10.0.0.1"}, {Type: "Hostname", Address: "n"}},
				Images:     []v1.ContainerImage{{Names: []string{"x"}, SizeBytes: 1 << 40}},
				NodeInfo:   v1.NodeSystemInfo{KernelVersion: "6"},
			},
		}
	}
	for name, change := range map[string]func(*v1.Node){
		"nothing":               func(*v1.Node) {},
		"scalar":                func(n *v1.Node) { n.Status.NodeInfo.KernelVersion = "7" },
		"scalar to zero":        func(n *v1.Node) { n.Status.NodeInfo.KernelVersion = "" },
		"map":                   func(n *v1.Node) { n.Labels = map[string]string{"b": "3", "c": "4"} },
		"map gone":              func(n *v1.Node) { n.Labels = nil },
		"quantity":              func(n *v1.Node) { n.Status.Capacity["cpu"] = quantity.MustParse("1500m") },
		"resource gone":         func(n *v1.Node) { delete(n.Status.Capacity, "memory") },
		"list without key":      func(n *v1.Node) { n.Status.Images = append(n.Status.Images, v1.ContainerImage{SizeBytes: 1 << 53}) },
		"list without key gone": func(n *v1.Node) { n.Status.Images = nil },
		"condition changed":     func(n *v1.Node) { n.Status.Conditions[0] = condition("Ready", "False", "") },
		"condition added in front": func(n *v1.Node) {
			n.Status.Conditions = append([]v1.NodeCondition{condition("PID", "False", "")}, n.Status.Conditions...)
		},
		"condition removed":      func(n *v1.Node) { n.Status.Conditions = n.Status.Conditions[1:] },
		"all conditions removed": func(n *v1.Node) { n.Status.Conditions = nil },
		"conditions swapped":     func(n *v1.Node) { c := n.Status.Conditions; c[0], c[1] = c[1], c[0] },
		"address of a second family": func(n *v1.Node) {
			n.Status.Addresses = slices.Insert(n.Status.Addresses, 1, v1.NodeAddress{Type: "InternalIP", Address: "fd00::1"})
		},
		"address changed":     func(n *v1.Node) { n.Status.Addresses[0].Address = "10.0.0.2" },
		"addresses removed":   func(n *v1.Node) { n.Status.Addresses = nil },
		"addresses reordered": func(n *v1.Node) { slices.Reverse(n.Status.Addresses) },
		"finalizers":          func(n *v1.Node) { n.Finalizers = []string{"h", "g"} },
		"finalizers gone":     func(n *v1.Node) { n.Finalizers = nil },
		"owner":               func(n *v1.Node) { n.OwnerReferences = append(n.OwnerReferences, metav1.OwnerReference{UID: "v"}) },
		"owner's field":       func(n *v1.Node) { n.OwnerReferences[0].Controller = new(true) },
		"list of values":      func(n *v1.Node) { n.Spec.PodCIDRs = []string{"10.0.1.0/24", "fd00::/64"} },
		"taints":              func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "u", Effect: v1.TaintEffectNoExecute}} },
		"everything":          func(n *v1.Node) { *n = v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}} },
	} {
		t.Run(name, func(t *testing.T) {
			old, want := base(), base()
			change(want)
			patch, err := Generate(old, want, All, "addresses")
			if err != nil {
				t.Fatal(err)
			}
			if (len(patch) == 0) != (name == "nothing") {
				t.Errorf("patch = %v", patch)
			}
			body, err := patch.Encode("")
			if err != nil {
				t.Fatal(err)
			}
			before, err := json.Marshal(old)
			if err != nil {
				t.Fatal(err)
			}
			after, err := strategicpatch.StrategicMergePatch(before, body, v1.Node{})
			if err != nil {
				t.Fatalf("%v\n%s", err, body)
			}
			var got v1.Node
			if err := json.Unmarshal(after, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, &got); diff != "" {
				t.Errorf("%s\n(-want +got):\n%s", body, diff)
			}
		})
	}
}

func TestPatchHasOnlyWhatDiffers(t *testing.T) {
	old := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Labels: map[string]string{"a": "1"}},
		Status:     v1.NodeStatus{Conditions: []v1.NodeCondition{condition("Ready", "True", "ok"), condition("Disk", "False", "")}},
	}
	changed := old.DeepCopy()
	changed.Labels["b"] = "2"
	changed.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(time.Unix(1e9+10, 0).UTC())
	for _, test := range []struct {
		part Part
		want string
	}{
		{OnlyStatus, `{"metadata":{"uid":"u"},"status":{"$setElementOrder/conditions":[{"type":"Ready"},{"type":"Disk"}],"conditions":[{"lastHeartbeatTime":"2001-09-09T01:46:50Z","type":"Ready"}]}}`},
		{WithoutStatus, `{"metadata":{"labels":{"b":"2"},"uid":"u"}}`},
	} {
		p, err := Generate(old, changed, test.part)
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.Encode(old.UID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, string(got)); diff != "" {
			t.Errorf("patch (-want +got):\n%s", diff)
		}
	}
}
