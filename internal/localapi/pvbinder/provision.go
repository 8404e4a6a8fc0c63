package pvbinder

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
)

// provision requests a volume from the external provisioner of the claim's class, or writes an
// event with the reason why that is impossible.
func (b *Binder) provision(ctx context.Context, c *v1.PersistentVolumeClaim, class *storagev1.StorageClass) error {
	before, name := c.DeepCopy(), claimClass(c)
	switch {
	case name == "":
		b.event(ctx, c, failedBinding, "no persistent volumes available for this claim and no storage class is set")
	case class == nil:
		b.event(ctx, c, provisioningFailed, fmt.Sprintf("storageclass.storage.k8s.io %q not found", name))
	case class.Provisioner == noProvisioner && waits(class):
		b.event(ctx, c, failedBinding, "node(s) didn't find available persistent volumes to bind")
	case class.Provisioner == noProvisioner:
		b.event(ctx, c, provisioningFailed, fmt.Sprintf("no volume plugin matched name: %s", noProvisioner))
	default:
		set(&c.Annotations, provisioner, class.Provisioner)
		set(&c.Annotations, provisionerBeta, class.Provisioner)
		if waits(class) {
			set(&c.Annotations, selectedNode, b.cfg.NodeName)
		}
		b.event(ctx, c, externalProvisioning, fmt.Sprintf("Waiting for a volume to be created either by the external provisioner '%s' or manually by the system administrator. "+
			"If volume creation is delayed, please verify that the provisioner is running and correctly registered.", class.Provisioner))
	}
	c.Status.Phase = v1.ClaimPending
	return b.update(ctx, before, c)
}

// waits reports whether a class waits for the first consumer; nil is no class.
func waits(class *storagev1.StorageClass) bool {
	return class != nil && ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingWaitForFirstConsumer
}
