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
	missing := missingFeatures(a.Facts.DeclaredFeatures, func(f nodedeclaredfeatures.Feature) bool { return f.InferForScheduling(&asks) })
	if len(missing) == 0 {
		return nil
	}
	return &Rejection{Reason: "PodFeatureUnsupported", Message: featuresMissing + strings.Join(missing, ", ")}
}

// featuresMissing is followed by names of features.
const featuresMissing = "Pod requires node features that are not available: "

// missingFeatures returns the names, sorted, of the features that are needed and not declared.
func missingFeatures(declared []string, needed func(nodedeclaredfeatures.Feature) bool) []string {
	var missing []string
	for _, f := range features.AllFeatures {
		if needed(f) && !slices.Contains(declared, f.Name()) {
			missing = append(missing, f.Name())
		}
	}
	slices.Sort(missing)
	return missing
}

// warnUndeclared tells, by an event, of features that the node does not declare and that a new wish
// of a running pod needs (KEP-5328). The API server refuses such updates where it knows what the
// node declares; what comes of the wish here is decided apart from this.
func (c *Chain) warnUndeclared(given, wanted *v1.Pod) {
	declared := c.cfg.Facts().DeclaredFeatures
	if declared == nil {
		return
	}
	before := nodedeclaredfeatures.PodInfo{Spec: &given.Spec, Status: &given.Status}
	after := nodedeclaredfeatures.PodInfo{Spec: &wanted.Spec, Status: &wanted.Status}
	missing := missingFeatures(declared, func(f nodedeclaredfeatures.Feature) bool { return f.InferForUpdate(&before, &after) })
	if len(missing) > 0 {
		c.cfg.Event(wanted, "", v1.EventTypeWarning, "FailedNodeDeclaredFeaturesCheck", featuresMissing+strings.Join(missing, ", "))
	}
}
