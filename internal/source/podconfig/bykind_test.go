package podconfig

import (
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"

	"berth/internal/source/manifest"
)

// byKind are objects of manifests.
type byKind struct {
	ConfigMaps             []*v1.ConfigMap
	Secrets                []*v1.Secret
	PersistentVolumeClaims []*v1.PersistentVolumeClaim
	PersistentVolumes      []*v1.PersistentVolume
	RuntimeClasses         []*nodev1.RuntimeClass
	ClusterTrustBundles    []*certificatesv1beta1.ClusterTrustBundle
	CSIDrivers             []*storagev1.CSIDriver
}

// sortByKind sorts the objects; pods are left out.
func sortByKind(all []manifest.Object) byKind {
	var out byKind
	for _, a := range all {
		switch o := a.Object.(type) {
		case *v1.ConfigMap:
			out.ConfigMaps = append(out.ConfigMaps, o)
		case *v1.Secret:
			out.Secrets = append(out.Secrets, o)
		case *v1.PersistentVolumeClaim:
			out.PersistentVolumeClaims = append(out.PersistentVolumeClaims, o)
		case *v1.PersistentVolume:
			out.PersistentVolumes = append(out.PersistentVolumes, o)
		case *nodev1.RuntimeClass:
			out.RuntimeClasses = append(out.RuntimeClasses, o)
		case *certificatesv1beta1.ClusterTrustBundle:
			out.ClusterTrustBundles = append(out.ClusterTrustBundles, o)
		case *storagev1.CSIDriver:
			out.CSIDrivers = append(out.CSIDrivers, o)
		}
	}
	return out
}
