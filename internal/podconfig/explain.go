package podconfig

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// explainDecode says why an object is none of its kind: the field with its indexes, what was found and what belongs there. err is what the
// decoder said; it is the answer when nothing better is found.
func explainDecode(kind string, object map[string]any, canonical []byte, err error) string {
	var into any = &v1.Pod{}
	if o := newLocalObject(kind); o != nil {
		into = o
	}
	var mismatch *json.UnmarshalTypeError
	if errors.As(json.Unmarshal(canonical, into), &mismatch) && mismatch.Field != "" {
		found, _, _ := strings.Cut(mismatch.Value, " ") // "number 1.5" is a number
		path := mismatch.Field
		members := strings.Split(mismatch.Field, ".")
		want := goKind(mismatch.Type)
		located, ok := "", false
		if want != "a list" && want != "an object" { // it may stand in a map: the decoder does not name the keys of maps
			located, ok = locate(object, append(members, anyKey), found)
		}
		if !ok {
			located, ok = locate(object, members, found)
		}
		if ok {
			path = strings.TrimPrefix(located, ".")
		}
		msg := fmt.Sprintf("%s: Invalid type: must be %s, got %s", path, want, cmp.Or(foundKinds[found], found))
		if mismatch.Type.Kind() == reflect.String && (found == "number" || found == "bool") {
			msg += "; put it in quotes"
		}
		return msg
	}
	if path, reason := locateBase64(kind, object); reason != nil {
		return fmt.Sprintf("%s: Invalid value: must be base64: %v", path, reason)
	}
	if path, value, reason := locateQuantity("", object); reason != nil {
		return fmt.Sprintf("%s: Invalid value: %q: %v", strings.TrimPrefix(path, "."), value, reason)
	}
	return "is no " + kind + ": " + strings.TrimPrefix(err.Error(), "json: ")
}

// foundKinds maps what the decoder calls a JSON value to what jsonKind does.
var foundKinds = map[string]string{
	"array": "a list", "object": "an object", "string": "a string", "number": "a number", "bool": "a boolean",
}

// anyKey stands for every key of a map.
const anyKey = "*"

// locate returns the first path along the members at whose end a value of the kind stands, with the indexes of the lists it goes
// through.
func locate(v any, members []string, kind string) (string, bool) {
	if list, ok := v.([]any); ok && (len(members) > 0 || kind != "array") {
		for i, e := range list {
			if p, ok := locate(e, members, kind); ok {
				return fmt.Sprintf("[%d]%s", i, p), true
			}
		}
		return "", false
	}
	if len(members) == 0 {
		return "", jsonKind(v) == foundKinds[kind]
	}
	object, ok := v.(map[string]any)
	if !ok {
		return "", false
	}
	if members[0] == anyKey {
		for _, k := range slices.Sorted(maps.Keys(object)) {
			if p, ok := locate(object[k], members[1:], kind); ok {
				return "[" + k + "]" + p, true
			}
		}
		return "", false
	}
	p, ok := locate(object[members[0]], members[1:], kind)
	return "." + members[0] + p, ok
}

// goKind names the JSON kind that a Go type decodes from.
func goKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Uint8:
		return "base64 text"
	case reflect.Pointer:
		return goKind(t.Elem())
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return goKind(t.Elem())
		}
		return "a list"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return fmt.Sprintf("an integer (%s)", t.Kind())
	case reflect.Float32, reflect.Float64:
		return "a number"
	default:
		return "an object"
	}
}

// quantityMembers are the members of a Pod whose values are quantities, quantityMaps those whose members' values are.
var (
	quantityMembers = []string{"sizeLimit", "divisor"}
	quantityMaps    = []string{"limits", "requests", "overhead"}
)

// locateQuantity returns the first quantity in v that cannot be parsed; the decoder does not say where it stands.
func locateQuantity(path string, v any) (string, any, error) {
	switch v := v.(type) {
	case []any:
		for i, e := range v {
			if p, bad, err := locateQuantity(fmt.Sprintf("%s[%d]", path, i), e); err != nil {
				return p, bad, err
			}
		}
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			p := path + "." + k
			if slices.Contains(quantityMembers, k) {
				if err := checkQuantity(v[k]); err != nil {
					return p, v[k], err
				}
			}
			if amounts, ok := v[k].(map[string]any); ok && slices.Contains(quantityMaps, k) {
				for _, name := range slices.Sorted(maps.Keys(amounts)) {
					if err := checkQuantity(amounts[name]); err != nil {
						return p + "." + name, amounts[name], err
					}
				}
			}
			if p, bad, err := locateQuantity(p, v[k]); err != nil {
				return p, bad, err
			}
		}
	}
	return "", nil, nil
}

func checkQuantity(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var q resource.Quantity
	return q.UnmarshalJSON(raw)
}
