package admission

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// A refusal for want of AppArmor names the field that asks for it.
func TestAppArmorNamesTheField(t *testing.T) {
	profile := func(t v1.AppArmorProfileType, name *string) *v1.AppArmorProfile {
		return &v1.AppArmorProfile{Type: t, LocalhostProfile: name}
	}
	for want, ask := range map[string]option{
		"securityContext.appArmorProfile is RuntimeDefault": func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{AppArmorProfile: profile(v1.AppArmorProfileTypeRuntimeDefault, nil)}
		},
		"containers[c].securityContext.appArmorProfile is Localhost web": func(p *v1.Pod) {
			p.Spec.Containers[0].Name = "c"
			p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{AppArmorProfile: profile(v1.AppArmorProfileTypeLocalhost, new("web"))}
		},
		"the annotation container.apparmor.security.beta.kubernetes.io/c is runtime/default": func(p *v1.Pod) {
			p.Annotations = map[string]string{v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + "c": "runtime/default"}
		},
	} {
		r := appArmor(Attributes{Pod: newPod("p", ask)})
		if r == nil || !strings.HasPrefix(r.Detail, r.Message+": "+want+", and /sys/module/apparmor/") {
			t.Errorf("got %+v, want %s", r, want)
		}
	}
}
