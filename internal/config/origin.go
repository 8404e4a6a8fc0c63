package config

import (
	"cmp"
	"reflect"
	"strings"
)

// OriginKind is a level of the configuration, from the weakest to the strongest.
type OriginKind string

// The levels.
const (
	FromDefault OriginKind = "default"
	FromFile    OriginKind = "file"
	FromDropIn  OriginKind = "drop-in"
	FromFlag    OriginKind = "flag"
)

// Origin is where a value came from.
type Origin struct {
	Kind OriginKind
	// Name is the path of the file or the name of the flag, with its dashes; "" for a default.
	Name string
	// Variable is the environment variable that stood for the flag, "" without one.
	Variable string
}

// String returns the file, flag or environment variable, or "default".
func (o Origin) String() string {
	if o.Kind == FromDefault {
		return "default"
	}
	return cmp.Or(o.Variable, o.Name)
}

// Origins holds, by the path of a field ("maxPods", "authentication.anonymous.enabled",
// "evictionHard[memory.available]", or the name of a flag that is no field, with its dashes), where
// its value came from. What is not in it is a default.
type Origins map[string]Origin

// Of returns the origin of the field. A list comes as a whole: the path of something within it, or
// within a map that was set by a flag, is answered with the list's.
func (o Origins) Of(path string) Origin {
	for path != "" {
		if origin, ok := o[path]; ok {
			return origin
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return Origin{Kind: FromDefault}
}

// record notes that the patch comes from origin.
func (o Origins) record(patch document, origin Origin) {
	visitor{
		list:    func(reflect.Type) bool { return false },
		unknown: func(string, string, []string) {}, // it takes no effect
		leaf: func(path string, value any, _ reflect.Type) {
			o.forget(path)
			if value != nil {
				o[path] = origin
			}
		},
	}.visit(patch, configurationType, "")
}

// forget drops the origins of path and of what is below it.
func (o Origins) forget(path string) {
	for p := range o {
		if rest, ok := strings.CutPrefix(p, path); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			delete(o, p)
		}
	}
}
