package podconfig

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LocalObjects are the API objects that manifests of run mode define for pods. They are complete: defaulted,
// validated, with a namespace where their kind has one, and a Secret's stringData merged into its data. They are shared and never changed.
type LocalObjects struct {
	ConfigMaps             []*v1.ConfigMap
	Secrets                []*v1.Secret
	PersistentVolumeClaims []*v1.PersistentVolumeClaim
	PersistentVolumes      []*v1.PersistentVolume
	RuntimeClasses         []*nodev1.RuntimeClass
	ClusterTrustBundles    []*certificatesv1beta1.ClusterTrustBundle
	CSIDrivers             []*storagev1.CSIDriver
}

// newLocalObject returns an empty object of a kind that run mode accepts beside pods, nil for all other kinds.
func newLocalObject(kind string) metav1.Object {
	switch kind {
	case "ConfigMap":
		return &v1.ConfigMap{}
	case "Secret":
		return &v1.Secret{}
	case "PersistentVolumeClaim":
		return &v1.PersistentVolumeClaim{}
	case "PersistentVolume":
		return &v1.PersistentVolume{}
	case "RuntimeClass":
		return &nodev1.RuntimeClass{}
	case "ClusterTrustBundle":
		return &certificatesv1beta1.ClusterTrustBundle{}
	case "CSIDriver":
		return &storagev1.CSIDriver{}
	}
	return nil
}

// versionOf returns the apiVersion of a kind that is accepted.
func versionOf(kind string) string {
	switch kind {
	case "RuntimeClass":
		return nodev1.SchemeGroupVersion.String()
	case "ClusterTrustBundle":
		return certificatesv1beta1.SchemeGroupVersion.String()
	case "CSIDriver":
		return storagev1.SchemeGroupVersion.String()
	}
	return "v1"
}

// namespaced reports whether objects of the kind are in a namespace.
func namespaced(kind string) bool {
	return kind != "RuntimeClass" && kind != "PersistentVolume" && kind != "CSIDriver" && kind != "ClusterTrustBundle"
}

// local takes one local object.
func (d *decoding) local(at Problem, kind string, object map[string]any) {
	o := newLocalObject(kind)
	canonical, ok := d.unmarshal(at, kind, object, o)
	if !ok {
		return
	}
	if o.GetNamespace() == "" && namespaced(kind) {
		o.SetNamespace(v1.NamespaceDefault)
	}
	o.SetManagedFields(nil)
	setObjectDefaults(o)
	if errs := validateObject(o); len(errs) > 0 {
		d.refuse(at, explainErrors(errs))
		return
	}
	if c, ok := o.(*nodev1.RuntimeClass); ok && c.Overhead != nil {
		d.warn(at, "overhead: is written into pods by a cluster's admission: write spec.overhead in the pods that name this class")
	}
	d.objects = append(d.objects, accepted{kind: kind, object: o, origin: d.origin, document: canonical})
}

// setObjectDefaults fills in what the API server would when the object is created.
func setObjectDefaults(o metav1.Object) {
	switch o := o.(type) {
	case *v1.Secret:
		setDefault(&o.Type, v1.SecretTypeOpaque)
		// stringData is for writing only: it wins, and is not kept.
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

// locateBase64 returns the first value of a Secret's data, or of a ConfigMap's binaryData, that is not base64; the decoder does not say
// where it stands. The value is not told: it may be a secret.
func locateBase64(kind string, object map[string]any) (path string, err error) {
	member := map[string]string{"Secret": "data", "ConfigMap": "binaryData"}[kind]
	values, _ := object[member].(map[string]any)
	for _, k := range slices.Sorted(maps.Keys(values)) {
		s, _ := values[k].(string)
		if _, err := base64.StdEncoding.DecodeString(s); err != nil {
			if kind == "Secret" {
				err = fmt.Errorf("%w; plain text belongs under stringData", err)
			}
			return fmt.Sprintf("%s[%s]", member, k), err
		}
	}
	return "", nil
}
