package admission

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/component-helpers/nodedeclaredfeatures/features"

	"berth/internal/pod"
)

// appArmor refuses pods that want a profile which the kernel would not enforce. A pod that was let
// in once stays.
func appArmor(a Attributes) *Rejection {
	phase := a.Pod.Status.Phase
	if a.Facts.AppArmor || phase != v1.PodPending && phase != "" || !wantsAppArmor(a.Pod) {
		return nil
	}
	return &Rejection{Reason: "AppArmor", Message: "Cannot enforce AppArmor: AppArmor is not enabled on the host"}
}

// wantsAppArmor reports whether a container has a profile other than unconfined: by its field, by
// the pod's, or by the annotation of old.
func wantsAppArmor(p *v1.Pod) bool {
	confined := func(profile *v1.AppArmorProfile) bool {
		return profile != nil && profile.Type != v1.AppArmorProfileTypeUnconfined
	}
	if sc := p.Spec.SecurityContext; sc != nil && confined(sc.AppArmorProfile) {
		return true
	}
	for c := range pod.Containers(&p.Spec) {
		if sc := c.SecurityContext; sc != nil && confined(sc.AppArmorProfile) {
			return true
		}
	}
	for name, profile := range p.Annotations {
		if strings.HasPrefix(name, v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) && profile != v1.DeprecatedAppArmorBetaProfileNameUnconfined {
			return true
		}
	}
	return false
}

// declaredFeatures refuses pods that need a feature which the node does not declare (KEP-5328).
func declaredFeatures(a Attributes) *Rejection {
	if a.Facts.DeclaredFeatures == nil {
		return nil
	}
	asks := nodedeclaredfeatures.PodInfo{Spec: &a.Pod.Spec, Status: &a.Pod.Status}
	var missing []string
	for _, f := range features.AllFeatures {
		if f.InferForScheduling(&asks) && !slices.Contains(a.Facts.DeclaredFeatures, f.Name()) {
			missing = append(missing, f.Name())
		}
	}
	slices.Sort(missing)
	if len(missing) == 0 {
		return nil
	}
	return &Rejection{
		Reason:  "PodFeatureUnsupported",
		Message: "Pod requires node features that are not available: " + strings.Join(missing, ", "),
	}
}
