package crispec

import (
	"fmt"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

// seccomp returns the container's seccomp profile: its own, the pod's, or the node's default.
func seccomp(in Container) (*runtimeapi.SecurityProfile, error) {
	var s *v1.SeccompProfile
	if sc := in.Container.SecurityContext; sc != nil {
		s = sc.SeccompProfile
	}
	if sc := in.Pod.Spec.SecurityContext; s == nil && sc != nil {
		s = sc.SeccompProfile
	}
	if s == nil {
		return &runtimeapi.SecurityProfile{ProfileType: in.Node.SeccompDefault}, nil
	}
	switch s.Type {
	case v1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case v1.SeccompProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	case v1.SeccompProfileTypeLocalhost:
		// With an empty name the directory itself would be the profile, which runtimes treat as no
		// profile (CVE-2023-2431).
		if s.LocalhostProfile == nil || *s.LocalhostProfile == "" {
			return nil, fmt.Errorf("localhostProfile must be set if seccompProfile type is %s", s.Type)
		}
		if !filepath.IsLocal(*s.LocalhostProfile) || filepath.Clean(*s.LocalhostProfile) == "." {
			return nil, fmt.Errorf("seccompProfile.localhostProfile %q must be a file below the node's folder of profiles", *s.LocalhostProfile)
		}
		return &runtimeapi.SecurityProfile{
			ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: filepath.Join(in.Node.SeccompRoot, *s.LocalhostProfile),
		}, nil
	}
	return nil, fmt.Errorf("seccompProfile.type %q is none of RuntimeDefault, Localhost and Unconfined", s.Type)
}

// appArmor returns the container's AppArmor profile, also in the form of CRI's deprecated field:
// from its own field, the deprecated annotation, or the pod's field. nil selects the runtime's
// default.
func appArmor(p *v1.Pod, c *v1.Container) (*runtimeapi.SecurityProfile, string, error) {
	if sc := c.SecurityContext; sc != nil && sc.AppArmorProfile != nil {
		return appArmorField(sc.AppArmorProfile)
	}
	key := v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + c.Name
	if value, ok := p.Annotations[key]; ok && value != "" {
		kind, name := pod.ParseAppArmor(value)
		if kind == "" {
			return nil, "", fmt.Errorf("annotation %s: %q is none of runtime/default, localhost/<profile> and unconfined", key, value)
		}
		return appArmorField(&v1.AppArmorProfile{Type: kind, LocalhostProfile: &name})
	}
	if sc := p.Spec.SecurityContext; sc != nil && sc.AppArmorProfile != nil {
		return appArmorField(sc.AppArmorProfile)
	}
	return nil, "", nil
}

func appArmorField(a *v1.AppArmorProfile) (*runtimeapi.SecurityProfile, string, error) {
	switch a.Type {
	case v1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, v1.DeprecatedAppArmorBetaProfileRuntimeDefault, nil
	case v1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, v1.DeprecatedAppArmorBetaProfileNameUnconfined, nil
	case v1.AppArmorProfileTypeLocalhost:
		if a.LocalhostProfile == nil || strings.TrimSpace(*a.LocalhostProfile) == "" {
			return nil, "", fmt.Errorf("localhostProfile must be set if appArmorProfile type is %s", a.Type)
		}
		name := *a.LocalhostProfile
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: name}, v1.DeprecatedAppArmorBetaProfileNamePrefix + name, nil
	}
	return nil, "", fmt.Errorf("appArmorProfile.type %q is none of RuntimeDefault, Localhost and Unconfined", a.Type)
}
