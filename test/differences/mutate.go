package differences

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
)

// doubled begins the name of a field that is written a second time.
const doubled = "@again@"

// place is a value in an object, and how to set it.
type place struct {
	path  []string
	kind  reflect.Type // nil: not known
	value any
	set   func(any)
	drop  func() // nil: the whole object
}

// places lists all values of an object of a type, the object itself first.
func places(object map[string]any, kind reflect.Type) []place {
	out := []place{{kind: kind, value: object}}
	for i := 0; i < len(out); i++ {
		out = append(out, within(out[i])...)
	}
	return out
}

// within are the values one level below a place, in an order that hangs on the place alone.
func within(p place) []place {
	kind := p.kind
	for kind != nil && kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	var out []place
	switch v := p.value.(type) {
	case map[string]any:
		for _, name := range sortedNames(v) {
			out = append(out, place{
				path: append(slices.Clone(p.path), name), kind: below(kind, name), value: v[name],
				set: func(to any) { v[name] = to }, drop: func() { delete(v, name) },
			})
		}
	case []any:
		var element reflect.Type
		if kind != nil && kind.Kind() == reflect.Slice {
			element = kind.Elem()
		}
		for i := range v {
			out = append(out, place{
				path: append(slices.Clone(p.path), "-"), kind: element, value: v[i],
				set: func(to any) { v[i] = to }, drop: func() { p.set(slices.Delete(slices.Clone(v), i, i+1)) },
			})
		}
	}
	return out
}

func sortedNames(m map[string]any) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// below is the type of a field.
func below(kind reflect.Type, name string) reflect.Type {
	switch {
	case kind == nil:
		return nil
	case kind.Kind() == reflect.Map:
		return kind.Elem()
	case kind.Kind() != reflect.Struct:
		return nil
	}
	for _, f := range fieldsOf(kind) {
		if f.name == name {
			return f.kind
		}
	}
	return nil
}

// mutate changes an object in one place. What makes the object another one, or would change what
// others see, stays as it is.
func mutate(r *rand.Rand, object map[string]any, kind reflect.Type) {
	all := places(object, kind)
	p := pick(r, all)
	if isIdentity(p.path) && r.IntN(8) > 0 {
		p = all[0]
	}
	if p.drop == nil || isObject(p.value) && r.IntN(2) == 0 {
		addField(r, p)
		return
	}
	switch r.IntN(12) {
	case 0, 1:
		p.drop()
	case 2:
		p.set(ofAnotherType(r, p.value))
	case 3:
		p.set(nil)
	case 4:
		p.set(decode([]byte(encode(pick(r, all).value)))) // what stands elsewhere: a copy, as it may have p in it
	case 5:
		p.set(strings.Repeat("x", pick(r, []int{64, 254, 70000})))
	case 6:
		if list, ok := p.value.([]any); ok && len(list) > 0 {
			p.set(append(slices.Clone(list), list[0]))
			return
		}
		p.set(pick(r, texts))
	case 7:
		p.set(nested(pick(r, []int{3, 200})))
	default:
		p.set(nearby(r, p))
	}
}

// isIdentity: the name and the kind of the object itself.
func isIdentity(path []string) bool {
	joined := strings.Join(path, ".")
	return joined == "apiVersion" || joined == "kind" || joined == "metadata" || joined == "metadata.name" || joined == "metadata.namespace"
}

func isObject(v any) bool { _, ok := v.(map[string]any); return ok }

// addField gives an object one more field: one that its type has, one that is unknown, or one
// twice.
func addField(r *rand.Rand, p place) {
	object, ok := p.value.(map[string]any)
	if !ok {
		return
	}
	kind := p.kind
	for kind != nil && kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	n := r.IntN(10)
	switch {
	case n == 0:
		object["nonsense"] = pick(r, texts)
	case n == 1 && len(object) > 0:
		name := pick(r, sortedNames(object))
		object[doubled+name] = object[name]
	case kind != nil && kind.Kind() == reflect.Struct && len(fieldsOf(kind)) > 0:
		f := pick(r, fieldsOf(kind))
		object[f.name] = value(r, f.kind, 3)
	case kind != nil && kind.Kind() == reflect.Map:
		object[pick(r, texts)] = value(r, kind.Elem(), 3)
	default:
		object[pick(r, texts)] = pick(r, texts)
	}
}

// nearby is a value of the type of the place.
func nearby(r *rand.Rand, p place) any {
	switch v := p.value.(type) {
	case float64, int:
		return pick(r, numbers)
	case bool:
		return !v
	case string:
		return pick(r, texts)
	}
	if p.kind != nil {
		return value(r, p.kind, 3)
	}
	return pick(r, texts)
}

func ofAnotherType(r *rand.Rand, v any) any {
	others := []any{7, "7", true, []any{}, map[string]any{}, []any{"a"}, map[string]any{"a": "b"}, 1.5}
	for {
		if other := pick(r, others); reflect.TypeOf(other) != reflect.TypeOf(v) {
			return other
		}
	}
}

func nested(depth int) any {
	var v any = "x"
	for range depth {
		v = map[string]any{"a": v}
	}
	return v
}

// encode writes an object as JSON, with the fields that are in it twice.
func encode(object any) string {
	b, err := json.Marshal(object)
	if err != nil {
		panic("differences: encode: " + err.Error()) // made of maps, lists and texts alone
	}
	text := strings.ReplaceAll(string(b), `"`+doubled, `"`)
	// A default that is for all would change the objects of other sequences.
	return strings.ReplaceAll(text, `"globalDefault":true`, `"globalDefault":false`)
}

func clone(object map[string]any) map[string]any {
	copied, _ := decode([]byte(encode(object))).(map[string]any)
	return copied
}
