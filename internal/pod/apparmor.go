package pod

import (
	"strings"

	v1 "k8s.io/api/core/v1"
)

// ParseAppArmor returns the profile that the value of a container's AppArmor annotation names, the
// place of profiles before they had fields (KEP-24). name is that of a Localhost profile. The type
// is "" if there is no such form.
func ParseAppArmor(value string) (kind v1.AppArmorProfileType, name string) {
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
