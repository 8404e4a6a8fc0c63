package defaults

import (
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SetObjectDefaults sets the defaults that the API server sets on create. The object is of a kind
// that run mode accepts.
func SetObjectDefaults(o metav1.Object) {
	switch o := o.(type) {
	case *v1.Secret:
		setDefault(&o.Type, v1.SecretTypeOpaque)
		// stringData is write-only: it overrides data, and is not stored.
		if len(o.StringData) > 0 && o.Data == nil {
			o.Data = make(map[string][]byte, len(o.StringData))
		}
		for k, s := range o.StringData {
			o.Data[k] = []byte(s)
		}
		o.StringData = nil
	case *v1.PersistentVolumeClaim:
		setDefaultPtr(&o.Spec.VolumeMode, v1.PersistentVolumeFilesystem)
		o.Status = v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending}
	case *v1.PersistentVolume:
		setDefaultPtr(&o.Spec.VolumeMode, v1.PersistentVolumeFilesystem)
		setDefault(&o.Spec.PersistentVolumeReclaimPolicy, v1.PersistentVolumeReclaimRetain)
		if o.Spec.HostPath != nil {
			setDefaultPtr(&o.Spec.HostPath.Type, v1.HostPathUnset)
		}
		if ref := o.Spec.ClaimRef; ref != nil {
			setDefault(&ref.Namespace, v1.NamespaceDefault)
		}
		o.Status = v1.PersistentVolumeStatus{Phase: v1.VolumePending}
	case *storagev1.CSIDriver:
		setDefaultPtr(&o.Spec.AttachRequired, true)
		setDefaultPtr(&o.Spec.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
		for _, off := range []**bool{&o.Spec.PodInfoOnMount, &o.Spec.StorageCapacity, &o.Spec.RequiresRepublish, &o.Spec.SELinuxMount} {
			setDefaultPtr(off, false)
		}
		if len(o.Spec.VolumeLifecycleModes) == 0 {
			o.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
		}
	}
}
