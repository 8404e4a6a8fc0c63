package pvbinder

import (
	"context"
	"errors"
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/utils/ptr"

	"berth/internal/localapi/store"
)

// claimProtection is the finalizer that each claim is created with.
const claimProtection = "kubernetes.io/pvc-protection"

// syncPod creates the missing claims of a pod's ephemeral volumes.
func (b *Binder) syncPod(ctx context.Context, key store.Key) error {
	p, err := get[*v1.Pod](b, key)
	if err != nil || p == nil || p.DeletionTimestamp != nil {
		return err
	}
	var errs []error
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.Ephemeral == nil || v.Ephemeral.VolumeClaimTemplate == nil {
			continue
		}
		if err := b.ensureClaim(ctx, p, v); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (b *Binder) ensureClaim(ctx context.Context, p *v1.Pod, v *v1.Volume) error {
	name := ephemeral.VolumeClaimName(p, v)
	existing, err := get[*v1.PersistentVolumeClaim](b, claimKey(p.Namespace, name))
	if err != nil {
		return err
	}
	if existing != nil {
		// The deletion of this claim queues the pod. The claim of an older pod with the same name
		// is deleted soon.
		owner := metav1.GetControllerOf(existing)
		older := owner != nil && owner.Kind == "Pod" && owner.Name == p.Name
		if err := ephemeral.VolumeIsForPod(p, existing); err != nil && !older {
			b.event(ctx, p, ephemeralConflict, fmt.Sprintf("ephemeral volume %s: %v: delete that claim, or rename the pod or the volume", v.Name, err))
		}
		return nil
	}
	t := v.Ephemeral.VolumeClaimTemplate
	c := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: name, Labels: maps.Clone(t.Labels), Annotations: maps.Clone(t.Annotations),
			Finalizers: []string{claimProtection},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec:   *t.Spec.DeepCopy(),
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
	if c.Spec.VolumeMode == nil {
		c.Spec.VolumeMode = ptr.To(v1.PersistentVolumeFilesystem)
	}
	if err := b.cfg.Writer.Create(ctx, c); err != nil {
		return fmt.Errorf("ephemeral volume %s: create claim %s: %w", v.Name, name, err)
	}
	delete(b.reported, store.Key{Resource: podsResource, Namespace: p.Namespace, Name: p.Name})
	return nil
}
