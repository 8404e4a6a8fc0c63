package defaults

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
)

// setAppArmorDefaults sets the profiles of containers that still have the deprecated annotation
// (KEP-24; kubernetes.io/docs/tutorials/security/apparmor, "Securing a Pod").
func setAppArmorDefaults(p *v1.Pod) {
	if p.Spec.OS != nil && p.Spec.OS.Name == v1.Windows {
		return
	}
	whole := p.Spec.SecurityContext.AppArmorProfile
	for c := range pod.Containers(&p.Spec) {
		kind, name := pod.ParseAppArmor(p.Annotations[v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name])
		if kind == "" || kind == v1.AppArmorProfileTypeLocalhost && name == "" {
			continue
		}
		if whole != nil && whole.Type == kind && ptr.Deref(whole.LocalhostProfile, "") == name {
			continue // it inherits the pod's
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
