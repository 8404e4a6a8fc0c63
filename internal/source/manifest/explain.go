package manifest

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// explainDecode returns why an object does not decode into its kind, whose type into has: the field
// with its indexes, the found and the expected type. It falls back to the decoder's err, which
// names embedded Go types, no indexes, and for times and quantities no field.
func explainDecode(kind string, object map[string]any, into metav1.Object, err error) string {
	if path, reason := locateBase64(kind, object); reason != nil {
		return fmt.Sprintf("%s: Invalid value: must be base64: %v", path, reason)
	}
	if path, reason := findMismatch(object, reflect.TypeOf(into)); reason != "" {
		return strings.TrimPrefix(path, ".") + ": " + reason
	}
	return "is no " + kind + ": " + strings.TrimPrefix(err.Error(), "json: ")
}

// locateBase64 returns the first value of a Secret's data, or of a ConfigMap's binaryData, that is
// not base64; the decoder does not name it. The error omits the value, which may be a secret.
func locateBase64(kind string, object map[string]any) (path string, err error) {
	member := map[string]string{"Secret": "data", "ConfigMap": "binaryData"}[kind]
	values, _ := object[member].(map[string]any)
	for _, k := range slices.Sorted(maps.Keys(values)) {
		s, _ := values[k].(string)
		if _, err := base64.StdEncoding.DecodeString(s); err != nil {
			if kind == "Secret" {
				err = fmt.Errorf("%w; plain text belongs under stringData", err)
			}
			return fmt.Sprintf("%s[%s]", member, k), err
		}
	}
	return "", nil
}

// findMismatch returns the path to the first value in v, in the order of the keys, that does not
// match its type, and the reason.
func findMismatch(v any, t reflect.Type) (path, reason string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	object, isObject := v.(map[string]any)
	list, isList := v.([]any)
	switch {
	case v == nil:
		return "", ""
	case reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()):
		return "", checkValue(v, t)
	case isList && t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		for i, e := range list {
			if path, reason := findMismatch(e, t.Elem()); reason != "" {
				return fmt.Sprintf("[%d]%s", i, path), reason
			}
		}
		return "", ""
	case isObject && (t.Kind() == reflect.Struct || t.Kind() == reflect.Map):
		for _, k := range slices.Sorted(maps.Keys(object)) {
			name, of := "["+k+"]", t
			if t.Kind() == reflect.Map {
				of = t.Elem()
			} else if name, of = "."+k, fieldType(t, k); of == nil {
				continue // an unknown field
			}
			if path, reason := findMismatch(object[k], of); reason != "" {
				return name + path, reason
			}
		}
		return "", ""
	default:
		return "", checkValue(v, t)
	}
}

// fieldType returns the type of the struct field with that JSON name, including fields of embedded
// structs; nil if there is none.
func fieldType(t reflect.Type, name string) reflect.Type {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == name {
			return f.Type
		}
		if f.Anonymous && tag == "" {
			if of := fieldType(f.Type, name); of != nil {
				return of
			}
		}
	}
	return nil
}

// checkValue returns why the value does not decode into the type, "" if it does.
func checkValue(v any, t reflect.Type) string {
	raw, err := json.Marshal(v)
	if err != nil {
		return "cannot be encoded: " + err.Error()
	}
	err = json.Unmarshal(raw, reflect.New(t).Interface())
	if err == nil {
		return ""
	}
	text, isText := v.(string)
	if _, mismatch := errors.AsType[*json.UnmarshalTypeError](err); isText && !mismatch {
		return fmt.Sprintf("Invalid value: %.100q: %v", text, err) // a quantity or a time
	}
	found := jsonKind(v)
	reason := fmt.Sprintf("Invalid type: must be %s, got %s", goKind(t), found)
	if t.Kind() == reflect.String && (found == "a number" || found == "a boolean") {
		reason += "; put it in quotes"
	}
	return reason
}

// goKind names the JSON type that a Go type decodes from.
func goKind(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[resource.Quantity]():
		return "a quantity, such as 500m or 64Mi"
	case reflect.TypeFor[intstr.IntOrString]():
		return "an integer or a string"
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return "a time in quotes"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return "base64 text"
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
