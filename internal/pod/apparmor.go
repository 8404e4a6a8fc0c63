package pod

import (
	"strings"

	v1 "k8s.io/api/core/v1"
)

// ParseAppArmor parses the value of a container's deprecated AppArmor annotation (KEP-24). name is
// that of a Localhost profile. The type is "" if the value is invalid.
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
