package gc

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"

	"berth/internal/localapi/store"
)

// The finalizers of claims and volumes. Their creator sets them.
const (
	claimProtection  = "kubernetes.io/pvc-protection"
	volumeProtection = "kubernetes.io/pv-protection"
)

// unprotect removes the protection finalizer of a deleted claim or volume that is not in use. done
// reports whether it did.
func (c *Collector) unprotect(ctx context.Context, o *object) (done bool, err error) {
	finalizer, used := claimProtection, c.claimIsUsed
	if o.key.Resource == "persistentvolumes" {
		finalizer, used = volumeProtection, volumeIsUsed
	}
	if !o.deleting() || !o.has(finalizer) {
		return false, nil
	}
	if in, err := used(o); in || err != nil {
		return false, err
	}
	return true, c.removeFinalizer(ctx, o, finalizer)
}

// claimIsUsed reports whether a pod with a node uses a claim, including terminated pods that are
// not deleted.
func (c *Collector) claimIsUsed(o *object) (used bool, err error) {
	var failed error
	_, err = c.cfg.Store.List(store.Range{Resource: "pods", Namespace: o.key.Namespace}, func(item store.Item) bool {
		found, err := decode(item)
		if err != nil {
			failed = err
			return false
		}
		pod, err := whole[*v1.Pod](found)
		if err != nil {
			failed = err
			return false
		}
		used = pod.Spec.NodeName != "" && slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool {
			return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == o.key.Name ||
				v.Ephemeral != nil && pod.Name+"-"+v.Name == o.key.Name
		})
		return !used
	})
	if err == nil {
		err = failed
	}
	return used, err
}

func volumeIsUsed(o *object) (bool, error) {
	volume, err := whole[*v1.PersistentVolume](o)
	return err == nil && volume.Status.Phase == v1.VolumeBound, err
}
