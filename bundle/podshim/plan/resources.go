package plan

import (
	"reflect"
	"regexp"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// systemdPath matches a cgroup in systemd's form: slice, prefix and name of a scope in it.
var systemdPath = regexp.MustCompile(`^[^/:]+\.slice:[^/:]*:[^/:]+$`)

// onlyV1 and onlyUnified are limits that exist in only one version of cgroups. The other would
// silently ignore them.
var (
	onlyV1 = []string{
		"network", "memory.swappiness", "memory.disableOOMKiller", "cpu.realtimeRuntime", "cpu.realtimePeriod", "blockIO.leafWeight",
	}
	onlyUnified = []string{"unified"}
)

// ValidateResources validates limits. An unsupported one is a *FieldError.
func ValidateResources(r *specs.LinuxResources, unified bool) error {
	const prefix = "linux.resources."
	if r == nil {
		return nil
	}
	if err := validateStruct(reflect.ValueOf(r).Elem(), prefix); err != nil {
		return err
	}
	other, version := onlyUnified, "2"
	if unified {
		other, version = onlyV1, "1"
	}
	for _, name := range other {
		if isSet(reflect.ValueOf(r).Elem(), name) {
			return unsupported(prefix+name, "only cgroups of version %s have it", version)
		}
	}
	return validateDeviceRules(r.Devices)
}

// isSet reports whether the field at a path has a value.
func isSet(v reflect.Value, path string) bool {
	for name := range strings.SplitSeq(path, ".") {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				return false
			}
			v = v.Elem()
		}
		at := reflect.Value{}
		for i := range v.NumField() {
			if tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ","); tag == name {
				at = v.Field(i)
			}
		}
		v = at
	}
	return !isUnset(v)
}
