package podconfig

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// setAppArmorDefaults sets the profiles of containers that still have theirs in the annotation that was its place before the field
// (KEP-24; kubernetes.io/docs/tutorials/security/apparmor, "Securing a Pod").
func setAppArmorDefaults(p *v1.Pod) {
	if isWindows(&p.Spec) {
		return
	}
	whole := p.Spec.SecurityContext.AppArmorProfile
	for _, containers := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			kind, name := parseAppArmor(p.Annotations[v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name])
			if kind == "" || kind == v1.AppArmorProfileTypeLocalhost && name == "" {
				continue
			}
			if whole != nil && whole.Type == kind && ptr.Deref(whole.LocalhostProfile, "") == name {
				continue // it has the pod's
			}
			setDefaultPtr(&c.SecurityContext, v1.SecurityContext{})
			if c.SecurityContext.AppArmorProfile != nil {
				continue
			}
			c.SecurityContext.AppArmorProfile = &v1.AppArmorProfile{Type: kind}
			if name != "" {
				c.SecurityContext.AppArmorProfile.LocalhostProfile = &name
			}
		}
	}
}

// parseAppArmor returns the profile that the annotation's value names; the type is "" if there is no such form.
func parseAppArmor(value string) (kind v1.AppArmorProfileType, name string) {
	switch value {
	case v1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return v1.AppArmorProfileTypeRuntimeDefault, ""
	case v1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return v1.AppArmorProfileTypeUnconfined, ""
	}
	if name, ok := strings.CutPrefix(value, v1.DeprecatedAppArmorBetaProfileNamePrefix); ok {
		return v1.AppArmorProfileTypeLocalhost, name
	}
	return "", ""
}
