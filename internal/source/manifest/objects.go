package manifest

import (
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/source/defaults"
	"berth/internal/source/validation"
)

// newLocalObject returns an empty object of a kind that run mode accepts beside pods, nil for all
// other kinds.
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

// versionOf returns the apiVersion of an accepted kind.
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

// local decodes one local object.
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
	defaults.SetObjectDefaults(o)
	if errs := validation.ValidateObject(o); len(errs) > 0 {
		d.refuse(at, explainErrors(errs))
		return
	}
	if c, ok := o.(*nodev1.RuntimeClass); ok && c.Overhead != nil {
		d.warn(at, "overhead: is written into pods by a cluster's admission: write spec.overhead in the pods that name this class")
	}
	d.decoded.Objects = append(d.decoded.Objects, Object{Kind: kind, Object: o, Origin: d.from, Document: canonical})
}
