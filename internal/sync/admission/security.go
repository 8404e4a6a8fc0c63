package admission

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/component-helpers/nodedeclaredfeatures/features"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
)

// appArmor rejects pods with a profile that the kernel would not enforce. A pod that was admitted
// before stays.
func appArmor(a Attributes) *Rejection {
	phase := a.Pod.Status.Phase
	field := findAppArmor(a.Pod)
	if a.Facts.AppArmor || phase != v1.PodPending && phase != "" || field == "" {
		return nil
	}
	const message = "Cannot enforce AppArmor: AppArmor is not enabled on the host"
	return &Rejection{Reason: "AppArmor", Message: message, Detail: message + ": " + field +
		", and /sys/module/apparmor/parameters/enabled is not Y; boot the node with the kernel parameters apparmor=1 security=apparmor, or set the profile to Unconfined"}
}

// findAppArmor returns the field that requests a profile other than unconfined, with its value: of
// the pod, of a container, or the deprecated annotation; "" if there is none.
func findAppArmor(p *v1.Pod) string {
	confined := func(profile *v1.AppArmorProfile) bool {
		return profile != nil && profile.Type != v1.AppArmorProfileTypeUnconfined
	}
	field := func(of string, profile *v1.AppArmorProfile) string {
		return fmt.Sprintf("%ssecurityContext.appArmorProfile is %s", of, strings.Join(slices.DeleteFunc([]string{string(profile.Type), ptr.Deref(profile.LocalhostProfile, "")}, func(s string) bool { return s == "" }), " "))
	}
	if sc := p.Spec.SecurityContext; sc != nil && confined(sc.AppArmorProfile) {
		return field("", sc.AppArmorProfile)
	}
	for c := range pod.Containers(&p.Spec) {
		if sc := c.SecurityContext; sc != nil && confined(sc.AppArmorProfile) {
			return field(fmt.Sprintf("containers[%s].", c.Name), sc.AppArmorProfile)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Annotations)) {
		if profile := p.Annotations[name]; strings.HasPrefix(name, v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) && profile != v1.DeprecatedAppArmorBetaProfileNameUnconfined {
			return fmt.Sprintf("the annotation %s is %s", name, profile)
		}
	}
	return ""
}

// declaredFeatures rejects pods that need a feature which the node does not declare (KEP-5328).
func declaredFeatures(a Attributes) *Rejection {
	if a.Facts.DeclaredFeatures == nil {
		return nil
	}
	info := nodedeclaredfeatures.PodInfo{Spec: &a.Pod.Spec, Status: &a.Pod.Status}
	missing := missingFeatures(a.Facts.DeclaredFeatures, func(f nodedeclaredfeatures.Feature) bool { return f.InferForScheduling(&info) })
	if len(missing) == 0 {
		return nil
	}
	return &Rejection{Reason: "PodFeatureUnsupported", Message: featuresMissing + strings.Join(missing, ", ")}
}

// featuresMissing is followed by feature names.
const featuresMissing = "Pod requires node features that are not available: "

// missingFeatures returns the sorted names of needed features that are not declared.
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

// warnUndeclared records an event if a resize of a running pod needs features that the node does
// not declare (KEP-5328). The API server rejects such updates if it knows the node's features. The
// event does not affect the decision about the resize.
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
