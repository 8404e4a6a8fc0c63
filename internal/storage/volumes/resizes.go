package volumes

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Reasons of resize events; they are the kubelet's.
const (
	resizedReason      = "FileSystemResizeSuccessful"
	readOnlyReason     = "FileSystemResizeFailed"
	resizeFailedReason = "VolumeResizeFailed"
)

// resizes writes the progress of an expansion to claims and events.
type resizes struct {
	host     *host
	claims   *claims
	nodeName string
}

// begin marks the expansion as in progress in the claim, and returns the claim as stored.
func (r *resizes) begin(ctx context.Context, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	stored, err := r.claims.api.PatchPersistentVolumeClaimStatus(ctx, claim, mergeResizeBegun(claim))
	if err != nil {
		return nil, fmt.Errorf("mark PVC %s/%s as resize in progress: %w", claim.Namespace, claim.Name, err)
	}
	return stored, nil
}

// finish writes the volume's new size to the claim.
func (r *resizes) finish(ctx context.Context, claim *v1.PersistentVolumeClaim, size resource.Quantity) (*v1.PersistentVolumeClaim, error) {
	stored, err := r.claims.api.PatchPersistentVolumeClaimStatus(ctx, claim, mergeResized(claim, size))
	if err != nil {
		return nil, fmt.Errorf("mark PVC %s/%s as resized: %w", claim.Namespace, claim.Name, err)
	}
	return stored, nil
}

// fail writes the error of the expansion to the claim.
func (r *resizes) fail(ctx context.Context, claim *v1.PersistentVolumeClaim, f feasibility, cause error) error {
	message := fmt.Sprintf("failed to expand pvc with %v", cause)
	_, err := r.claims.api.PatchPersistentVolumeClaimStatus(ctx, claim, mergeResizeFailed(claim, message, f, time.Now()))
	return err
}

func (r *resizes) recordResized(p *v1.Pod, claim *v1.PersistentVolumeClaim, volume string) {
	r.record(p, claim, v1.EventTypeNormal, resizedReason,
		fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", volume, r.nodeName))
}

func (r *resizes) recordReadOnly(p *v1.Pod, claim *v1.PersistentVolumeClaim, volume string) {
	r.record(p, claim, v1.EventTypeWarning, readOnlyReason,
		fmt.Sprintf("MountVolume.NodeExpandVolume failed for volume %q requested read-only file system", volume))
}

// record records one event about the pod and one about its claim.
func (r *resizes) record(p *v1.Pod, claim *v1.PersistentVolumeClaim, eventtype, reason, message string) {
	r.host.recorder.Event(p, "", eventtype, reason, message)
	r.host.recorder.ClaimEvent(claim, eventtype, reason, message)
}
