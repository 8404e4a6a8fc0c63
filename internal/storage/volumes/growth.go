package volumes

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// growth is the node's task for a volume that has grown (KEP-1790).
type growth int

const (
	// sized: no task, the size is up to date.
	sized growth = iota
	// grows: the driver must expand the volume.
	grows
	// waits: nothing for now; the controller has to act first, or the expansion has failed
	// permanently, according to the claim.
	waits
)

// noNodeExpansion is an annotation of claims for which the expansion on one node suffices
// (KEP-1790).
const noNodeExpansion = "volume.kubernetes.io/node-expansion-not-required"

// resizeConditions report an expansion in progress; they are removed when it is complete.
var resizeConditions = []v1.PersistentVolumeClaimConditionType{
	v1.PersistentVolumeClaimResizing, v1.PersistentVolumeClaimFileSystemResizePending,
	v1.PersistentVolumeClaimControllerResizeError, v1.PersistentVolumeClaimNodeResizeError,
}

// computeGrowth returns the task for a claim's volume with the known size on this node, and its
// target size.
func computeGrowth(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, known resource.Quantity) (growth, resource.Quantity) {
	size := pv.Spec.Capacity[v1.ResourceStorage]
	if known.Cmp(size) >= 0 {
		return sized, known
	}
	if !reportsProgress(claim) {
		return grows, size
	}
	target, allocated := claim.Status.AllocatedResources[v1.ResourceStorage]
	if !allocated {
		target = size
	}
	has := claim.Status.Capacity[v1.ResourceStorage]
	switch state := claim.Status.AllocatedResourceStatuses[v1.ResourceStorage]; {
	case state == v1.PersistentVolumeClaimNodeResizePending || state == v1.PersistentVolumeClaimNodeResizeInProgress:
		return grows, target
	case has.Cmp(target) < 0:
		return waits, target
	case slices.Contains(pv.Spec.AccessModes, v1.ReadWriteMany) && claim.Annotations[noNodeExpansion] == "":
		return grows, target // another node has expanded its own mount
	}
	return sized, target
}

// reportsProgress reports whether the claim has the progress of its expansion, which older
// controllers do not write.
func reportsProgress(claim *v1.PersistentVolumeClaim) bool {
	_, allocated := claim.Status.AllocatedResources[v1.ResourceStorage]
	_, state := claim.Status.AllocatedResourceStatuses[v1.ResourceStorage]
	return allocated || state
}

// mergeResizeBegun returns the claim with the node's expansion in progress.
func mergeResizeBegun(claim *v1.PersistentVolumeClaim) *v1.PersistentVolumeClaim {
	out := claim.DeepCopy()
	if out.Status.AllocatedResourceStatuses[v1.ResourceStorage] == v1.PersistentVolumeClaimNodeResizePending {
		out.Status.AllocatedResourceStatuses[v1.ResourceStorage] = v1.PersistentVolumeClaimNodeResizeInProgress
	}
	return out
}

// mergeResized returns the claim with the completed expansion to the size.
func mergeResized(claim *v1.PersistentVolumeClaim, size resource.Quantity) *v1.PersistentVolumeClaim {
	out := claim.DeepCopy()
	if has := out.Status.Capacity[v1.ResourceStorage]; has.Cmp(size) < 0 {
		if out.Status.Capacity == nil {
			out.Status.Capacity = v1.ResourceList{}
		}
		out.Status.Capacity[v1.ResourceStorage] = size
	}
	delete(out.Status.AllocatedResourceStatuses, v1.ResourceStorage)
	out.Status.Conditions = slices.DeleteFunc(out.Status.Conditions, func(c v1.PersistentVolumeClaimCondition) bool { return slices.Contains(resizeConditions, c.Type) })
	return out
}

// mergeResizeFailed returns the claim with the failure; infeasible means that it cannot succeed
// without a change of the claim.
func mergeResizeFailed(claim *v1.PersistentVolumeClaim, message string, f feasibility, now time.Time) *v1.PersistentVolumeClaim {
	out := claim.DeepCopy()
	if f == infeasible && reportsProgress(claim) {
		if out.Status.AllocatedResourceStatuses == nil {
			out.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{}
		}
		out.Status.AllocatedResourceStatuses[v1.ResourceStorage] = v1.PersistentVolumeClaimNodeResizeInfeasible
	}
	failed := v1.PersistentVolumeClaimCondition{
		Type: v1.PersistentVolumeClaimNodeResizeError, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(now), Message: message,
	}
	at := slices.IndexFunc(out.Status.Conditions, func(c v1.PersistentVolumeClaimCondition) bool { return c.Type == failed.Type })
	if at < 0 {
		out.Status.Conditions = append(out.Status.Conditions, failed)
		return out
	}
	if old := out.Status.Conditions[at]; old.Status == failed.Status {
		failed.LastTransitionTime = old.LastTransitionTime
	}
	out.Status.Conditions[at] = failed
	return out
}

// feasibility is whether a failed expansion can succeed when it is retried.
type feasibility int

const (
	feasible feasibility = iota
	infeasible
)
