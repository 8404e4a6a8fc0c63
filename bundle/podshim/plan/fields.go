package plan

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// supported are the supported fields of a specification, or those that have their own check. Each
// other field that is set is rejected, including fields of later releases of the specification.
var supported = map[string]bool{
	"ociVersion":                 true,
	"annotations":                true,
	"hostname":                   true, // the pod's: checked
	"process.args":               true,
	"process.cwd":                true,
	"process.env":                true,
	"process.user.uid":           true,
	"process.user.gid":           true,
	"process.noNewPrivileges":    true,
	"process.oomScoreAdj":        true,
	"process.terminal":           true,
	"process.consoleSize":        true,
	"process.rlimits":            true, // checked
	"process.apparmorProfile":    true,
	"process.selinuxLabel":       true,
	"root.path":                  true, // checked
	"root.readonly":              true,
	"mounts":                     true, // checked one by one
	"linux.cgroupsPath":          true, // checked
	"linux.namespaces":           true, // checked
	"linux.rootfsPropagation":    true, // checked
	"linux.maskedPaths":          true,
	"linux.readonlyPaths":        true,
	"linux.resources.devices":    true, // checked
	"linux.resources.cpu.shares": true,
	"linux.devices":              true, // checked

	"process.user.additionalGids":      true,
	"process.capabilities.bounding":    true,
	"process.capabilities.effective":   true,
	"process.capabilities.inheritable": true,
	"process.capabilities.permitted":   true,
	"process.capabilities.ambient":     true,
	"linux.resources.memory.limit":     true,
	"linux.seccomp":                    true, // checked
	"linux.mountLabel":                 true,
	"linux.uidMappings":                true, // checked
	"linux.gidMappings":                true, // checked
	"linux.resources.memory.swap":      true,

	// Limits, which ValidateResources checks.
	"linux.resources.memory.reservation":       true,
	"linux.resources.memory.swappiness":        true,
	"linux.resources.memory.disableOOMKiller":  true,
	"linux.resources.memory.checkBeforeUpdate": true,
	"linux.resources.cpu.quota":                true,
	"linux.resources.cpu.burst":                true,
	"linux.resources.cpu.period":               true,
	"linux.resources.cpu.realtimeRuntime":      true,
	"linux.resources.cpu.realtimePeriod":       true,
	"linux.resources.cpu.cpus":                 true,
	"linux.resources.cpu.mems":                 true,
	"linux.resources.cpu.idle":                 true,
	"linux.resources.pids.limit":               true,
	"linux.resources.blockIO":                  true,
	"linux.resources.hugepageLimits":           true,
	"linux.resources.network":                  true,
	"linux.resources.rdma":                     true,
	"linux.resources.unified":                  true,
}

// partlySupported reports whether a field below the path is supported.
func partlySupported(path string) bool {
	for known := range supported {
		if strings.HasPrefix(known, path+".") {
			return true
		}
	}
	return false
}

// validateFields rejects a field that is set and not supported.
func validateFields(spec *specs.Spec) error { return validateStruct(reflect.ValueOf(spec).Elem(), "") }

func validateStruct(v reflect.Value, prefix string) error {
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		path, f := prefix+name, v.Field(i)
		if supported[path] || isUnset(f) {
			continue
		}
		if !partlySupported(path) {
			return unsupported(path, "is set, and the pod shim does not support it")
		}
		if f.Kind() == reflect.Pointer {
			f = f.Elem()
		}
		if err := validateStruct(f, path+"."); err != nil {
			return err
		}
	}
	return nil
}

// isUnset reports whether a field is not set. Empty lists are not set.
func isUnset(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	}
	return v.IsZero()
}

// FieldError is the error for a field of a specification that the pod shim does not support or, if
// Invalid is set, that is invalid for any runtime.
type FieldError struct {
	Field, Reason string
	Invalid       bool
}

func (r *FieldError) Error() string {
	if r.Invalid {
		return r.Field + ": " + r.Reason
	}
	return fmt.Sprintf("%s: %s: run the pod with the runtime handler of runc", r.Field, r.Reason)
}

func unsupported(field, reason string, args ...any) error {
	return &FieldError{Field: field, Reason: fmt.Sprintf(reason, args...)}
}

func invalid(field, reason string, args ...any) error {
	return &FieldError{Field: field, Reason: fmt.Sprintf(reason, args...), Invalid: true}
}
