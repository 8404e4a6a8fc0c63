package status

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// apply does what the API server does with a strategic merge patch of a pod's status.
func apply(t *testing.T, old v1.PodStatus, patch []byte) v1.PodStatus {
	t.Helper()
	if patch == nil {
		return old
	}
	b, err := json.Marshal(v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Status: old})
	if err != nil {
		t.Fatal(err)
	}
	b, err = strategicpatch.StrategicMergePatch(b, patch, v1.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	var p v1.Pod
	if err := json.Unmarshal(b, &p); err != nil {
		t.Fatal(err)
	}
	return p.Status
}

func apiCondition(typ v1.PodConditionType, status v1.ConditionStatus, reason string) v1.PodCondition {
	return v1.PodCondition{Type: typ, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(time.Unix(1e9, 0))}
}

func amounts(cpu string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}
}

func statuses() []v1.PodStatus {
	running := v1.PodStatus{
		Phase: v1.PodRunning, PodIP: "10.0.0.1", PodIPs: []v1.PodIP{{IP: "10.0.0.1"}}, HostIPs: []v1.HostIP{{IP: "1.1.1.1"}}, QOSClass: v1.PodQOSBurstable,
		ObservedGeneration: 2,
		Conditions: []v1.PodCondition{
			apiCondition(v1.PodScheduled, v1.ConditionTrue, ""), apiCondition(v1.PodReady, v1.ConditionTrue, ""), apiCondition("example.com/gate", v1.ConditionTrue, "Mine"),
		},
		ContainerStatuses: []v1.ContainerStatus{{Name: "a", Ready: true, RestartCount: 1}},
	}
	other := *running.DeepCopy()
	other.PodIP, other.PodIPs = "10.0.0.2", []v1.PodIP{{IP: "10.0.0.2"}, {IP: "fd00::2"}}
	other.HostIPs = nil
	other.Resources, other.AllocatedResources = &v1.ResourceRequirements{Requests: amounts("1"), Limits: amounts("2")}, amounts("1")
	resized := *other.DeepCopy()
	resized.Resources, resized.AllocatedResources = &v1.ResourceRequirements{Requests: amounts("3")}, amounts("3")
	other.Conditions[1] = apiCondition(v1.PodReady, v1.ConditionFalse, "ContainersNotReady")
	other.Conditions[1].ObservedGeneration = 3
	other.ContainerStatuses = []v1.ContainerStatus{{Name: "a"}, {Name: "b"}}
	failed := v1.PodStatus{Phase: v1.PodFailed, Reason: "Evicted", Message: "no room", Conditions: []v1.PodCondition{apiCondition(v1.DisruptionTarget, v1.ConditionTrue, "TerminationByKubelet")}}
	return []v1.PodStatus{{}, {Phase: v1.PodPending}, running, other, resized, failed}
}

func TestPatchLeadsFromOneStatusToTheOther(t *testing.T) {
	for i, from := range statuses() {
		for j, to := range statuses() {
			patch, err := generatePatch("u", &from, &to)
			if err != nil {
				t.Fatal(err)
			}
			if (patch == nil) != (i == j) {
				t.Errorf("%d to %d: patch %s", i, j, patch)
			}
			got := apply(t, from, patch)
			if d := cmp.Diff(to, got, conditionsByType()); d != "" {
				t.Errorf("%d to %d (-want +got):\n%s\npatch %s", i, j, d, patch)
			}
			if patch != nil && !strings.Contains(string(patch), `"metadata":{"uid":"u"}`) {
				t.Errorf("%d to %d: the patch has no precondition: %s", i, j, patch)
			}
		}
	}
}

// conditionsByType compares conditions without their order, which means nothing.
func conditionsByType() cmp.Option {
	return cmp.Transformer("sort", func(in []v1.PodCondition) map[v1.PodConditionType]v1.PodCondition {
		out := map[v1.PodConditionType]v1.PodCondition{}
		for _, c := range in {
			out[c.Type] = c
		}
		return out
	})
}

func TestMergeKeepsWhatBelongsToOthers(t *testing.T) {
	api := v1.PodStatus{
		Phase: v1.PodRunning, NominatedNodeName: "n",
		ResourceClaimStatuses:                []v1.PodResourceClaimStatus{{Name: "gpu"}},
		ExtendedResourceClaimStatus:          &v1.PodExtendedResourceClaimStatus{ResourceClaimName: "e"},
		NodeAllocatableResourceClaimStatuses: []v1.NodeAllocatableResourceClaimStatus{{ResourceClaimName: "cpu"}},
		Conditions: []v1.PodCondition{
			apiCondition("example.com/gate", v1.ConditionTrue, "Mine"), apiCondition(v1.PodReady, v1.ConditionTrue, ""), apiCondition(v1.PodReadyToStartContainers, v1.ConditionTrue, ""),
		},
	}
	ours := v1.PodStatus{Phase: v1.PodFailed, Reason: "Evicted", Message: "m", Conditions: []v1.PodCondition{
		apiCondition(v1.PodReady, v1.ConditionFalse, "PodFailed"), apiCondition(v1.DisruptionTarget, v1.ConditionTrue, "TerminationByKubelet"),
	}}
	held := mergeStatus(&api, &ours, true)
	if held.Phase != v1.PodRunning || held.Reason != "" || findCondition(held.Conditions, v1.DisruptionTarget) != nil {
		t.Errorf("a terminal phase is told while containers may run: %+v", held)
	}
	told := mergeStatus(&api, &ours, false)
	if told.Phase != v1.PodFailed || told.Reason != "Evicted" || findCondition(told.Conditions, v1.DisruptionTarget) == nil {
		t.Errorf("the terminal phase is not told: %+v", told)
	}
	if findCondition(told.Conditions, "example.com/gate") == nil || told.NominatedNodeName != "n" ||
		len(told.ResourceClaimStatuses) != 1 || told.ExtendedResourceClaimStatus == nil || len(told.NodeAllocatableResourceClaimStatuses) != 1 {
		t.Errorf("what belongs to others is lost: %+v", told)
	}
	if DiffersForeign(&api, held) {
		t.Errorf("a write changes what others write: %+v", held)
	}
	if findCondition(told.Conditions, v1.PodReadyToStartContainers) != nil || findCondition(told.Conditions, v1.PodReady).Status != v1.ConditionFalse {
		t.Errorf("our own conditions are not ours: %+v", told)
	}
}

// The agent's own writes differ in nothing that others write.
func TestOwnWritesAreNotForeign(t *testing.T) {
	all := statuses()
	foreignTypes := map[v1.PodConditionType]bool{"example.com/gate": true, v1.DisruptionTarget: true}
	for i := range all {
		for j := range all {
			want := false
			for typ := range foreignTypes {
				want = want || !cmp.Equal(findCondition(all[i].Conditions, typ), findCondition(all[j].Conditions, typ))
			}
			if got := DiffersForeign(&all[i], &all[j]); got != want {
				t.Errorf("%d and %d differ in what others write: %v, want %v", i, j, got, want)
			}
		}
	}
	for name, change := range map[string]func(*v1.PodStatus){
		"nominated node": func(s *v1.PodStatus) { s.NominatedNodeName = "n" },
		"claims":         func(s *v1.PodStatus) { s.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "gpu"}} },
		"extended claim": func(s *v1.PodStatus) {
			s.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{ResourceClaimName: "e"}
		},
		"allocatable claims": func(s *v1.PodStatus) {
			s.NodeAllocatableResourceClaimStatuses = []v1.NodeAllocatableResourceClaimStatus{{ResourceClaimName: "cpu"}}
		},
		"condition": func(s *v1.PodStatus) {
			s.Conditions = append(s.Conditions, apiCondition("example.com/other", v1.ConditionFalse, ""))
		},
	} {
		changed := all[2].DeepCopy()
		change(changed)
		if !DiffersForeign(&all[2], changed) {
			t.Errorf("%s: a write of others passes for the agent's own", name)
		}
	}
}

// BenchmarkNoPatch is what most comparisons with the API server find: nothing to change.
func BenchmarkNoPatch(b *testing.B) {
	ours := statuses()[3]
	api := ours.DeepCopy()
	b.ReportAllocs()
	for b.Loop() {
		if p, err := generatePatch("u", api, &ours); p != nil || err != nil {
			b.Fatal(string(p), err)
		}
	}
}
