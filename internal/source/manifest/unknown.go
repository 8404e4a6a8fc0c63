package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"berth/internal/config"
)

// unknownField is a field that its object's type does not have.
type unknownField struct {
	path string
	hint string // suggestion in brackets, with a leading blank; "" if there is none
}

// unknownFields warns of unknown fields, or rejects the object and returns false.
func (d *decoding) unknownFields(at Problem, fields []unknownField) (ok bool) {
	refused := d.decoder.Names == KeepNames && !d.decoder.AllowUnknownFields
	var messages []string
	for i, f := range fields {
		if i == maxMessages {
			messages = append(messages, fmt.Sprintf("%d more unknown fields", len(fields)-i))
			break
		}
		message := fmt.Sprintf("unknown field %q", f.path)
		if !refused {
			message += " is ignored"
		}
		messages = append(messages, message+f.hint)
	}
	switch {
	case len(fields) == 0:
		return true
	case refused:
		d.refuse(at, strings.Join(messages, "; ")+"; --allow-unknown-fields has them ignored")
		return false
	}
	for _, m := range messages {
		d.warn(at, m)
	}
	return true
}

// findUnknown returns the unknown fields of the object, in the order of the keys.
func findUnknown(object map[string]any, root reflect.Type) []unknownField {
	var found []unknownField
	var visit func(v any, t reflect.Type, path string)
	visit = func(v any, t reflect.Type, path string) {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
			return // it has its own encoding
		}
		switch v := v.(type) {
		case []any:
			if t.Kind() == reflect.Slice {
				for i, e := range v {
					visit(e, t.Elem(), fmt.Sprintf("%s[%d]", path, i))
				}
			}
		case map[string]any:
			for _, k := range slices.Sorted(maps.Keys(v)) {
				switch t.Kind() {
				case reflect.Map:
					visit(v[k], t.Elem(), path+"["+k+"]")
				case reflect.Struct:
					if of := fieldType(t, k); of != nil {
						visit(v[k], of, joinPath(path, k))
					} else {
						found = append(found, unknownField{joinPath(path, k), hintField(k, path, t, root)})
					}
				}
			}
		}
	}
	visit(object, root, "")
	return found
}

// hintField suggests the intended field for an unknown name at the path, whose type is t: a similar
// name, or another place. It prefers a place above or below the path, since wrong indentation
// causes that.
func hintField(name, path string, t, root reflect.Type) string {
	names := fieldNames(t)
	near := config.Nearest(name, names)
	if near == "" { // such as secret for a volume's secretName
		if i := slices.IndexFunc(names, func(n string) bool {
			return len(name) > 3 && strings.HasSuffix(strings.ToLower(n), strings.ToLower(name))
		}); i >= 0 {
			near = names[i]
		}
	}
	if near != "" {
		return fmt.Sprintf(" (did you mean %q?)", near)
	}
	here := listIndex.ReplaceAllString(path, "[]")
	places := slices.DeleteFunc(findPlaces(name, root), func(place string) bool { return place == "" })
	if len(places) == 0 {
		return ""
	}
	place := places[0]
	if i := slices.IndexFunc(places, func(place string) bool { return isBelow(place, here) || isBelow(here, place) }); i >= 0 {
		place = places[i]
	}
	return fmt.Sprintf(" (it is a field of %s: is it indented wrongly?)", place)
}

var listIndex = regexp.MustCompile(`\[\d+\]`)

// isBelow reports whether path equals above or is below it.
func isBelow(path, above string) bool {
	rest, ok := strings.CutPrefix(path, above)
	return ok && (above == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
}

// maxDepth limits the search for a field's place: wrong indentation does not lead deeper.
const maxDepth = 5

// findPlaces returns the paths of the objects below the type that have a field of the name, the
// shortest first. A list is written as "containers[]".
func findPlaces(name string, root reflect.Type) []string {
	type object struct {
		path string
		t    reflect.Type
	}
	var places []string
	level := []object{{"", root}}
	for range maxDepth {
		var next []object
		for _, o := range level {
			t, path := o.t, o.path
			for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
				if t.Kind() == reflect.Slice {
					path += "[]"
				}
				t = t.Elem()
			}
			if t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
				continue
			}
			for _, f := range fieldNames(t) {
				if f == name {
					places = append(places, path)
				}
				next = append(next, object{joinPath(path, f), fieldType(t, f)})
			}
		}
		level = next
	}
	return places
}

// fieldNames returns the JSON names of the struct's fields, sorted.
func fieldNames(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case tag != "" && tag != "-":
			names = append(names, tag)
		case f.Anonymous:
			names = append(names, fieldNames(f.Type)...)
		}
	}
	slices.Sort(names)
	return names
}

func joinPath(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
