package manifests

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	"berth/internal/localapi/kinds"
	"berth/internal/pod"
)

const (
	// mark names the file of an object, as for pods.
	mark = pod.ManifestAnnotation
	// markOf names the marked object, to detect copies of an object with its annotations.
	markOf = "berth.dev/manifest-object"
)

// DefaultAnnotation marks an object that the API creates initially. A manifest may replace it.
const DefaultAnnotation = "berth.dev/default"

// isDefault reports whether an object is an unchanged initial object.
func isDefault(o kinds.Object) bool { return o.GetAnnotations()[DefaultAnnotation] == "true" }

// marked reports whether a manifest defines an object.
func marked(o kinds.Object) bool {
	a := o.GetAnnotations()
	return a[mark] != "" && a[markOf] == nameOf(o)
}

// merge returns the desired object of a manifest, given the stored one, which may be nil.
func merge(o Object, stored kinds.Object) kinds.Object {
	out := o.DeepCopyObject().(kinds.Object)
	out.GetObjectKind().SetGroupVersionKind(kinds.Of(out).GroupVersionKind)
	annotations := maps.Clone(out.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[mark], annotations[markOf] = o.Path, nameOf(o)
	protect(out)
	if stored != nil {
		preserveMetadata(out, stored)
		preserveAnnotations(annotations, stored)
	}
	out.SetAnnotations(annotations)
	switch out := out.(type) {
	case *v1.PersistentVolumeClaim:
		out.Status = v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending}
		if is, ok := stored.(*v1.PersistentVolumeClaim); ok {
			preserveClaim(out, is)
		}
	case *v1.PersistentVolume:
		out.Status = v1.PersistentVolumeStatus{Phase: v1.VolumePending}
		if is, ok := stored.(*v1.PersistentVolume); ok {
			preserveVolume(out, is)
		}
	}
	return out
}

// protect adds the protection finalizer that claims and volumes have in a cluster.
func protect(o kinds.Object) {
	switch o.(type) {
	case *v1.PersistentVolumeClaim:
		addFinalizers(o, "kubernetes.io/pvc-protection")
	case *v1.PersistentVolume:
		addFinalizers(o, "kubernetes.io/pv-protection")
	}
}

func addFinalizers(o kinds.Object, more ...string) {
	all := slices.Clone(o.GetFinalizers())
	for _, f := range more {
		if !slices.Contains(all, f) {
			all = append(all, f)
		}
	}
	o.SetFinalizers(all)
}

// preserveMetadata preserves metadata that the API sets.
func preserveMetadata(o, stored kinds.Object) {
	finalizers := o.GetFinalizers()
	o.SetFinalizers(stored.GetFinalizers())
	addFinalizers(o, finalizers...)
	o.SetUID(stored.GetUID())
	o.SetResourceVersion(stored.GetResourceVersion())
	o.SetCreationTimestamp(stored.GetCreationTimestamp())
	o.SetGeneration(stored.GetGeneration())
	o.SetManagedFields(stored.GetManagedFields())
	o.SetOwnerReferences(stored.GetOwnerReferences())
}

// preserveAnnotations preserves the annotations in which controllers and drivers store state of
// claims and volumes.
func preserveAnnotations(annotations map[string]string, stored kinds.Object) {
	switch stored.(type) {
	case *v1.PersistentVolumeClaim, *v1.PersistentVolume:
		for name, value := range stored.GetAnnotations() {
			domain, _, _ := strings.Cut(name, "/")
			if _, given := annotations[name]; !given && strings.HasSuffix(domain, ".kubernetes.io") {
				annotations[name] = value
			}
		}
	}
}

// preserveClaim preserves what binding and admission have written.
func preserveClaim(c, stored *v1.PersistentVolumeClaim) {
	c.Status = stored.Status
	if c.Spec.VolumeName == "" {
		c.Spec.VolumeName = stored.Spec.VolumeName
	}
	if c.Spec.StorageClassName == nil {
		c.Spec.StorageClassName = stored.Spec.StorageClassName
	}
}

// preserveVolume preserves the claimRef of a volume. A claimRef of the manifest is set again when
// its claim was deleted, so that the next claim of that name gets the volume.
func preserveVolume(v, stored *v1.PersistentVolume) {
	v.Status = stored.Status
	wants, has := v.Spec.ClaimRef, stored.Spec.ClaimRef
	released := stored.Status.Phase == v1.VolumeReleased || stored.Status.Phase == v1.VolumeFailed
	if wants == nil || !released && wants.UID == "" && has != nil && wants.Namespace == has.Namespace && wants.Name == has.Name {
		v.Spec.ClaimRef = has
	}
}

func changesImmutable(o, stored kinds.Object) bool {
	switch is := stored.(type) {
	case *v1.ConfigMap:
		want, ok := o.(*v1.ConfigMap)
		return ptr.Deref(is.Immutable, false) && (!ok || !ptr.Deref(want.Immutable, false) ||
			!equality.Semantic.DeepEqual(is.Data, want.Data) || !equality.Semantic.DeepEqual(is.BinaryData, want.BinaryData))
	case *v1.Secret:
		want, ok := o.(*v1.Secret)
		return ptr.Deref(is.Immutable, false) && (!ok || !ptr.Deref(want.Immutable, false) ||
			is.Type != want.Type || !equality.Semantic.DeepEqual(is.Data, want.Data))
	}
	return false
}
