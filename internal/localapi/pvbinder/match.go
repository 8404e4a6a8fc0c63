package pvbinder

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/utils/ptr"
)

// names reports whether a volume names a claim, by UID too if the volume has one.
func names(v *v1.PersistentVolume, c *v1.PersistentVolumeClaim) bool {
	r := v.Spec.ClaimRef
	return r != nil && r.Namespace == c.Namespace && r.Name == c.Name && (r.UID == "" || r.UID == c.UID)
}

// misfit returns why a volume cannot be bound to a claim, however it was selected; "" if it can.
func misfit(v *v1.PersistentVolume, c *v1.PersistentVolumeClaim) string {
	has, wants := v.Spec.Capacity[v1.ResourceStorage], c.Spec.Resources.Requests[v1.ResourceStorage]
	switch {
	case has.Cmp(wants) < 0:
		return "requested PV is too small"
	case ptr.Deref(v.Spec.VolumeAttributesClassName, "") != ptr.Deref(c.Spec.VolumeAttributesClassName, ""):
		return "VolumeAttributesClassName does not match"
	case ptr.Deref(v.Spec.VolumeMode, v1.PersistentVolumeFilesystem) != ptr.Deref(c.Spec.VolumeMode, v1.PersistentVolumeFilesystem):
		return "incompatible volumeMode"
	case slices.ContainsFunc(c.Spec.AccessModes, func(m v1.PersistentVolumeAccessMode) bool { return !slices.Contains(v.Spec.AccessModes, m) }):
		return "incompatible accessMode"
	}
	return ""
}

// misfitNamed is misfit for a volume that the claim names but that names no claim.
func misfitNamed(v *v1.PersistentVolume, c *v1.PersistentVolumeClaim) string {
	switch {
	case v.DeletionTimestamp != nil:
		return "it is being deleted"
	case volumeClass(v) != claimClass(c):
		return "storageClassName does not match"
	}
	return misfit(v, c)
}

// preBound returns the volume that names a claim, preferably by its UID.
func preBound(volumes []*v1.PersistentVolume, c *v1.PersistentVolumeClaim) (best *v1.PersistentVolume) {
	for _, v := range volumes {
		if v.DeletionTimestamp == nil && names(v, c) && (best == nil || best.Spec.ClaimRef.UID == "" && v.Spec.ClaimRef.UID != "") {
			best = v
		}
	}
	return best
}

// choose returns the smallest available volume that matches a claim, nil if there is none. If node
// is nil, no volume with an affinity matches.
func choose(volumes []*v1.PersistentVolume, c *v1.PersistentVolumeClaim, node *v1.Node) (best *v1.PersistentVolume, err error) {
	selector := labels.Everything()
	if c.Spec.Selector != nil {
		if selector, err = metav1.LabelSelectorAsSelector(c.Spec.Selector); err != nil {
			return nil, fmt.Errorf("spec.selector: %w", err)
		}
	}
	for _, v := range volumes {
		free := v.DeletionTimestamp == nil && v.Spec.ClaimRef == nil
		if free && volumeClass(v) == claimClass(c) && misfit(v, c) == "" && selector.Matches(labels.Set(v.Labels)) &&
			reaches(v, node) && (best == nil || size(v).Cmp(*size(best)) < 0) {
			best = v
		}
	}
	return best, nil
}

func size(v *v1.PersistentVolume) *resource.Quantity {
	return ptr.To(v.Spec.Capacity[v1.ResourceStorage])
}

// reaches reports whether a volume can be used on the node. An invalid selector matches nothing.
func reaches(v *v1.PersistentVolume, node *v1.Node) bool {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return true
	}
	if node == nil {
		return false
	}
	match, err := corev1.MatchNodeSelectorTerms(node, v.Spec.NodeAffinity.Required)
	return match && err == nil
}

// claimClass returns the name of a claim's class, "" for none.
func claimClass(c *v1.PersistentVolumeClaim) string {
	if class, ok := c.Annotations[v1.BetaStorageClassAnnotation]; ok {
		return class
	}
	return ptr.Deref(c.Spec.StorageClassName, "")
}

// leavesClass reports whether a claim uses the default class.
func leavesClass(c *v1.PersistentVolumeClaim) bool {
	_, old := c.Annotations[v1.BetaStorageClassAnnotation]
	return !old && c.Spec.StorageClassName == nil
}

func volumeClass(v *v1.PersistentVolume) string {
	if class, ok := v.Annotations[v1.BetaStorageClassAnnotation]; ok {
		return class
	}
	return v.Spec.StorageClassName
}

// defaultClass returns the default class, the newest if there are several, as admission does; nil
// if there is none.
func defaultClass(classes []*storagev1.StorageClass) (best *storagev1.StorageClass) {
	for _, c := range classes {
		if c.Annotations[isDefaultClass] != "true" && c.Annotations[isDefaultClassBeta] != "true" {
			continue
		}
		if best == nil || cmp.Or(c.CreationTimestamp.Compare(best.CreationTimestamp.Time), cmp.Compare(best.Name, c.Name)) > 0 {
			best = c
		}
	}
	return best
}
