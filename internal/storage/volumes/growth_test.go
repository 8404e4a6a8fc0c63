package volumes

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func sizeList(size string) v1.ResourceList {
	if size == "" {
		return nil
	}
	return v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
}

func TestComputeGrowth(t *testing.T) {
	for name, tt := range map[string]struct {
		known, has, pv, allocated string
		state                     v1.ClaimResourceStatus
		mode                      v1.PersistentVolumeAccessMode
		annotated                 bool
		want                      growth
		target                    string
	}{
		"as large as it is":               {known: "1Gi", has: "1Gi", pv: "1Gi", want: sized, target: "1Gi"},
		"smaller than it was":             {known: "2Gi", has: "2Gi", pv: "1Gi", want: sized, target: "2Gi"},
		"nothing is said of its size":     {known: "1Gi", has: "1Gi", want: sized, target: "1Gi"},
		"grown, by an old controller":     {known: "1Gi", has: "1Gi", pv: "2Gi", want: grows, target: "2Gi"},
		"of a size that nobody knows":     {pv: "2Gi", want: grows, target: "2Gi"},
		"grown, the node's turn":          {known: "1Gi", has: "1Gi", pv: "3Gi", allocated: "2Gi", state: v1.PersistentVolumeClaimNodeResizePending, want: grows, target: "2Gi"},
		"grown, the node was at it":       {known: "1Gi", has: "1Gi", pv: "2Gi", allocated: "2Gi", state: v1.PersistentVolumeClaimNodeResizeInProgress, want: grows, target: "2Gi"},
		"grown, the controller's turn":    {known: "1Gi", has: "1Gi", pv: "2Gi", allocated: "2Gi", state: v1.PersistentVolumeClaimControllerResizeInProgress, want: waits, target: "2Gi"},
		"grown, in vain":                  {known: "1Gi", has: "1Gi", pv: "2Gi", allocated: "2Gi", state: v1.PersistentVolumeClaimNodeResizeInfeasible, want: waits, target: "2Gi"},
		"grown, a state without a size":   {known: "1Gi", has: "1Gi", pv: "2Gi", state: v1.PersistentVolumeClaimNodeResizePending, want: grows, target: "2Gi"},
		"grown by another node":           {known: "1Gi", has: "2Gi", pv: "2Gi", allocated: "2Gi", mode: v1.ReadWriteMany, want: grows, target: "2Gi"},
		"grown by another node, for all":  {known: "1Gi", has: "2Gi", pv: "2Gi", allocated: "2Gi", mode: v1.ReadWriteMany, annotated: true, want: sized, target: "2Gi"},
		"grown without this node":         {known: "1Gi", has: "2Gi", pv: "2Gi", allocated: "2Gi", mode: v1.ReadWriteOnce, want: sized, target: "2Gi"},
		"grown, and the status is behind": {known: "1Gi", has: "1Gi", pv: "2Gi", allocated: "2Gi", mode: v1.ReadWriteMany, want: waits, target: "2Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			claim, pv := &v1.PersistentVolumeClaim{}, &v1.PersistentVolume{}
			pv.Spec.Capacity, claim.Status.Capacity, claim.Status.AllocatedResources = sizeList(tt.pv), sizeList(tt.has), sizeList(tt.allocated)
			if tt.state != "" {
				claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: tt.state}
			}
			if tt.mode != "" {
				pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{tt.mode}
			}
			if tt.annotated {
				claim.Annotations = map[string]string{noNodeExpansion: "true"}
			}
			known := sizeList(tt.known)[v1.ResourceStorage]
			got, target := computeGrowth(claim, pv, known)
			if want := resource.MustParse(tt.target); got != tt.want || target.Cmp(want) != 0 {
				t.Errorf("got %d to %s, want %d to %s", got, target.String(), tt.want, tt.target)
			}
		})
	}
}

func TestMergeResize(t *testing.T) {
	claim := &v1.PersistentVolumeClaim{Status: v1.PersistentVolumeClaimStatus{
		Capacity: sizeList("1Gi"), AllocatedResources: sizeList("2Gi"),
		AllocatedResourceStatuses: map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending},
		Conditions: []v1.PersistentVolumeClaimCondition{
			{Type: v1.PersistentVolumeClaimFileSystemResizePending, Status: v1.ConditionTrue}, {Type: "Mine", Status: v1.ConditionTrue},
		},
	}}
	before := claim.DeepCopy()
	begun := mergeResizeBegun(claim)
	if got := begun.Status.AllocatedResourceStatuses[v1.ResourceStorage]; got != v1.PersistentVolumeClaimNodeResizeInProgress {
		t.Errorf("begun: %s", got)
	}
	early, late := time.Unix(1000, 0), time.Unix(2000, 0)
	failed := mergeResizeFailed(begun, "first", feasible, early)
	again := mergeResizeFailed(failed, "second", infeasible, late)
	want := v1.PersistentVolumeClaimCondition{Type: v1.PersistentVolumeClaimNodeResizeError, Status: v1.ConditionTrue, Message: "second", LastTransitionTime: metav1.NewTime(early)}
	if diff := cmp.Diff(append(before.Status.Conditions, want), again.Status.Conditions); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	states := []v1.ClaimResourceStatus{failed.Status.AllocatedResourceStatuses[v1.ResourceStorage], again.Status.AllocatedResourceStatuses[v1.ResourceStorage]}
	if diff := cmp.Diff([]v1.ClaimResourceStatus{v1.PersistentVolumeClaimNodeResizeInProgress, v1.PersistentVolumeClaimNodeResizeInfeasible}, states); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	done := mergeResized(again, resource.MustParse("2Gi"))
	wantDone := v1.PersistentVolumeClaimStatus{
		Capacity: sizeList("2Gi"), AllocatedResources: sizeList("2Gi"), AllocatedResourceStatuses: map[v1.ResourceName]v1.ClaimResourceStatus{},
		Conditions: before.Status.Conditions[1:],
	}
	if diff := cmp.Diff(wantDone, done.Status); diff != "" {
		t.Errorf("done (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, claim); diff != "" {
		t.Errorf("the claim was changed in place:\n%s", diff)
	}
	// A claim of an old controller is not told of states.
	old := mergeResizeFailed(&v1.PersistentVolumeClaim{}, "m", infeasible, early)
	if old.Status.AllocatedResourceStatuses != nil || len(old.Status.Conditions) != 1 {
		t.Errorf("got %+v", old.Status)
	}
}
