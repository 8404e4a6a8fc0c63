package config

import (
	"cmp"
	"reflect"
	"strings"
)

// OriginKind is a layer of the configuration, in order of precedence.
type OriginKind string

// The layers, from the lowest precedence to the highest.
const (
	FromDefault OriginKind = "default"
	FromFile    OriginKind = "file"
	FromDropIn  OriginKind = "drop-in"
	FromFlag    OriginKind = "flag"
)

// Origin is the origin of a value.
type Origin struct {
	Kind OriginKind
	// Name is the path of the file or the name of the flag with its dashes; "" for a default.
	Name string
	// Variable is the environment variable that set the flag, "" without one.
	Variable string
}

// String returns the file, flag or environment variable, or "default".
func (o Origin) String() string {
	if o.Kind == FromDefault {
		return "default"
	}
	return cmp.Or(o.Variable, o.Name)
}

// Origins maps the path of a field ("maxPods", "authentication.anonymous.enabled",
// "evictionHard[memory.available]", or the name of a flag that is not a field, with its dashes) to
// the origin of its value. Missing paths are defaults.
type Origins map[string]Origin

// Of returns the origin of the field. A list has one origin: the path of an element, or of an entry
// of a map that was set by a flag, has the origin of the whole.
func (o Origins) Of(path string) Origin {
	for path != "" {
		if origin, ok := o[path]; ok {
			return origin
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return Origin{Kind: FromDefault}
}

// record records origin for the fields of the patch.
func (o Origins) record(patch document, origin Origin) {
	visitor{
		list:    func(reflect.Type) bool { return false },
		unknown: func(string, string, []string) {}, // has no effect
		leaf: func(path string, value any, _ reflect.Type) {
			o.forget(path)
			if value != nil {
				o[path] = origin
			}
		},
	}.visit(patch, configurationType, "")
}

// forget removes the origins of path and its subfields.
func (o Origins) forget(path string) {
	for p := range o {
		if rest, ok := strings.CutPrefix(p, path); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			delete(o, p)
		}
	}
}
