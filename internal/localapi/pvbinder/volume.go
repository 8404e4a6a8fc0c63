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
	if ref == nil || ref.UID == "" { // available, or reserved for a future claim
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
		return nil // the first write of a binding is done: the claim's sync makes the second
	case c.Spec.VolumeName == v.Name:
		setPhase(v, v1.VolumeBound, "")
	case v.Annotations[provisionedBy] != "" && v.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete:
		b.release(ctx, v) // it was provisioned for a claim that has another volume
	default:
		unbind(v)
	}
	return b.update(ctx, old, v)
}

// unbind makes a volume available whose claim has another one. It preserves a claimRef that a user
// has written.
func unbind(v *v1.PersistentVolume) {
	if _, ours := v.Annotations[boundByController]; ours {
		delete(v.Annotations, boundByController)
		v.Spec.ClaimRef = nil
	} else {
		v.Spec.ClaimRef.UID, v.Spec.ClaimRef.ResourceVersion = "", ""
	}
	setPhase(v, v1.VolumeAvailable, "")
}

// release sets a volume whose claim was deleted to Released, or to Failed if its reclaim policy is
// not supported. An external provisioner deletes its own volumes.
func (b *Binder) release(ctx context.Context, v *v1.PersistentVolume) {
	if v.Status.Phase != v1.VolumeFailed { // set by a provisioner, for example
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
		b.event(ctx, v, r, message)
	}
	setPhase(v, v1.VolumeFailed, message)
}

// setPhase sets the phase of a volume, with the time of a transition.
func setPhase(v *v1.PersistentVolume, phase v1.PersistentVolumePhase, message string) {
	if v.Status.Phase != phase {
		v.Status.Phase = phase
		now := metav1.Now()
		v.Status.LastPhaseTransitionTime = &now
	}
	v.Status.Message = message
}
