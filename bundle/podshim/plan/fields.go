package plan

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// understood are the supported fields of a specification, or those that have their own check. Each
// other field that is set is rejected, including fields of later releases of the specification.
var understood = map[string]bool{
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

	// Limits, which RefuseResources checks.
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

// partly reports whether a field below the path is supported.
func partly(path string) bool {
	for known := range understood {
		if strings.HasPrefix(known, path+".") {
			return true
		}
	}
	return false
}

// refuseFields rejects a field that is set and not supported.
func refuseFields(spec *specs.Spec) error { return refuseStruct(reflect.ValueOf(spec).Elem(), "") }

func refuseStruct(v reflect.Value, prefix string) error {
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		path, f := prefix+name, v.Field(i)
		if understood[path] || unset(f) {
			continue
		}
		if !partly(path) {
			return refused(path, "is set, and the pod shim does not do it")
		}
		if f.Kind() == reflect.Pointer {
			f = f.Elem()
		}
		if err := refuseStruct(f, path+"."); err != nil {
			return err
		}
	}
	return nil
}

// unset reports whether a field is not set. Empty lists are not set.
func unset(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	}
	return v.IsZero()
}

// Refused is the error for a field of a specification that the pod shim does not support or, if
// Wrong is set, that is invalid for any runtime.
type Refused struct {
	Field, Why string
	Wrong      bool
}

func (r *Refused) Error() string {
	if r.Wrong {
		return r.Field + ": " + r.Why
	}
	return fmt.Sprintf("%s: %s: run the pod with the runtime handler of runc", r.Field, r.Why)
}

func refused(field, why string, args ...any) error {
	return &Refused{Field: field, Why: fmt.Sprintf(why, args...)}
}

func wrong(field, why string, args ...any) error {
	return &Refused{Field: field, Why: fmt.Sprintf(why, args...), Wrong: true}
}
