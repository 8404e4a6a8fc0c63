package pvbinder

import (
	"context"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/localapi/store"
)

func (b *Binder) syncVolume(ctx context.Context, key store.Key) error {
	old, err := get[*v1.PersistentVolume](b, key)
	if err != nil || old == nil {
		return err
	}
	v := old.DeepCopy()
	ref := v.Spec.ClaimRef
	if ref == nil || ref.UID == "" { // free, or kept for a claim that is to come
		setPhase(v, v1.VolumeAvailable, "")
		return b.update(ctx, old, v)
	}
	c, err := get[*v1.PersistentVolumeClaim](b, claimKey(ref.Namespace, ref.Name))
	switch {
	case err != nil:
		return err
	case c == nil || c.UID != ref.UID:
		b.release(ctx, v)
	case c.Spec.VolumeName == "":
		return nil // half of it is done: the claim does the rest
	case c.Spec.VolumeName == v.Name:
		setPhase(v, v1.VolumeBound, "")
	case v.Annotations[provisionedBy] != "" && v.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete:
		b.release(ctx, v) // it was made for a claim that has another
	default:
		unbind(v)
	}
	return b.update(ctx, old, v)
}

// unbind frees a volume whose claim has another one. What a user wrote stays.
func unbind(v *v1.PersistentVolume) {
	if _, ours := v.Annotations[boundByController]; ours {
		delete(v.Annotations, boundByController)
		v.Spec.ClaimRef = nil
	} else {
		v.Spec.ClaimRef.UID, v.Spec.ClaimRef.ResourceVersion = "", ""
	}
	setPhase(v, v1.VolumeAvailable, "")
}

// release says that the claim of a volume is gone, and what its policy asks for cannot be done, if
// it cannot. What an external provisioner has made is its own to delete.
func (b *Binder) release(ctx context.Context, v *v1.PersistentVolume) {
	if v.Status.Phase != v1.VolumeFailed { // which somebody else may have written
		setPhase(v, v1.VolumeReleased, "")
	}
	const free = "empty it, then remove its spec.claimRef to use it again, or delete it"
	switch v.Spec.PersistentVolumeReclaimPolicy {
	case v1.PersistentVolumeReclaimRecycle:
		b.fail(ctx, v, volumeFailedRecycle, "No recycler plugin found for the volume! persistentVolumeReclaimPolicy Recycle is deprecated and not carried out: "+free)
	case v1.PersistentVolumeReclaimDelete:
		if by := v.Annotations[provisionedBy]; by == "" || strings.HasPrefix(by, "kubernetes.io/") {
			b.fail(ctx, v, volumeFailedDelete, "persistentVolumeReclaimPolicy Delete needs the provisioner that made the volume, and none did: "+free)
		}
	}
}

func (b *Binder) fail(ctx context.Context, v *v1.PersistentVolume, r reason, message string) {
	if v.Status.Message != message {
		b.tell(ctx, v, r, message)
	}
	setPhase(v, v1.VolumeFailed, message)
}

// setPhase gives a volume a phase, and the time of the change if it is one.
func setPhase(v *v1.PersistentVolume, phase v1.PersistentVolumePhase, message string) {
	if v.Status.Phase != phase {
		v.Status.Phase = phase
		now := metav1.Now()
		v.Status.LastPhaseTransitionTime = &now
	}
	v.Status.Message = message
}
