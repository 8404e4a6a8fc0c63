package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	kjson "sigs.k8s.io/json"
)

// document is a configuration as decoded JSON, with only the fields that are set.
type document = map[string]any

var configurationType = reflect.TypeFor[KubeletConfiguration]()

// mergePatch merges patch into target as a JSON merge patch (RFC 7386): objects merge, null
// deletes, everything else replaces.
func mergePatch(target, patch document) {
	for key, value := range patch {
		object, ok := value.(document)
		switch {
		case value == nil:
			delete(target, key)
		case ok:
			below, ok := target[key].(document)
			if !ok {
				below = document{}
				target[key] = below
			}
			mergePatch(below, object)
		default:
			target[key] = value
		}
	}
}

func setField(target document, path string, value any) {
	names := strings.Split(path, ".")
	for _, name := range names[:len(names)-1] {
		below, ok := target[name].(document)
		if !ok {
			below = document{}
			target[name] = below
		}
		target = below
	}
	target[names[len(names)-1]] = value
}

// Document returns the KubeletConfiguration with the given values by path, as in Field, in the form
// of a file. Flags that are not fields are left out.
func Document(values map[string]any) map[string]any {
	doc := document{"apiVersion": APIVersion, "kind": Kind}
	for path, value := range values {
		if strings.HasPrefix(path, "--") {
			continue
		}
		head, key, isItem := strings.Cut(path, "[")
		if !isItem {
			setField(doc, path, value)
			continue
		}
		items, ok := fieldAt(doc, head)
		if !ok {
			items = document{}
			setField(doc, head, items)
		}
		items.(document)[strings.TrimSuffix(key, "]")] = value
	}
	return doc
}

func fieldAt(doc document, path string) (any, bool) {
	var value any = doc
	for name := range strings.SplitSeq(path, ".") {
		object, ok := value.(document)
		if !ok {
			return nil, false
		}
		if value, ok = object[name]; !ok {
			return nil, false
		}
	}
	return value, true
}

// toDocument is the inverse of fromDocument.
func toDocument(c *KubeletConfiguration) (document, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	var doc document
	if err := kjson.UnmarshalCaseSensitivePreserveInts(b, &doc); err != nil {
		return nil, fmt.Errorf("decode configuration: %w", err)
	}
	return doc, nil
}

// fromDocument decodes a document that checkTypes has accepted.
func fromDocument(doc document) (*KubeletConfiguration, error) {
	b, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	c := &KubeletConfiguration{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(b, c); err != nil {
		return nil, fmt.Errorf("decode configuration: %w", err)
	}
	return c, nil
}

// visitor has callbacks for the contents of a document.
type visitor struct {
	// leaf is called with each value that is not an object of the type.
	leaf func(path string, value any, t reflect.Type)
	// unknown is called with each name that the type at path does not have.
	unknown func(path, name string, known []string)
	// list reports whether the elements of a list are visited instead of the whole list.
	list func(t reflect.Type) bool
}

// visit traverses the value of a document along its type, ordered by name.
func (v visitor) visit(value any, t reflect.Type, path string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	object, isObject := value.(document)
	list, isList := value.([]any)
	switch {
	case readsItself(t):
		v.leaf(path, value, t)
	case isObject && t.Kind() == reflect.Struct:
		fields := fieldsOf(t)
		for _, name := range slices.Sorted(maps.Keys(object)) {
			below, ok := fields[name]
			if !ok {
				v.unknown(path, name, slices.Sorted(maps.Keys(fields)))
				continue
			}
			v.visit(object[name], below, join(path, name))
		}
	case isObject && t.Kind() == reflect.Map && len(object) > 0:
		for _, key := range slices.Sorted(maps.Keys(object)) {
			v.visit(object[key], t.Elem(), path+"["+key+"]")
		}
	case isList && t.Kind() == reflect.Slice && v.list(t):
		for i, element := range list {
			v.visit(element, t.Elem(), fmt.Sprintf("%s[%d]", path, i))
		}
	default:
		v.leaf(path, value, t)
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// readsItself reports whether the type has its own unmarshaler, such as a duration.
func readsItself(t reflect.Type) bool { return reflect.PointerTo(t).Implements(unmarshaler) }

// fieldsOf returns the types of a struct's fields by their names in a document.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			maps.Copy(fields, fieldsOf(f.Type)) // inlined
			continue
		}
		fields[name] = f.Type
	}
	return fields
}

// checkTypes compares a document with the type of the configuration: unknown are the names that it
// does not have, wrong the values of the wrong type.
func checkTypes(doc document) (unknown, wrong []error) {
	visitor{
		list: func(reflect.Type) bool { return true },
		unknown: func(path, name string, known []string) {
			unknown = append(unknown, unknownField(join(path, name), name, known))
		},
		leaf: func(path string, value any, t reflect.Type) {
			if err := checkLeaf(value, t); err != nil {
				wrong = append(wrong, fmt.Errorf("%s: %w", path, err))
			}
		},
	}.visit(doc, configurationType, "")
	return unknown, wrong
}

func unknownField(path, name string, known []string) error {
	if near := Nearest(name, known); near != "" {
		return fmt.Errorf("%s: unknown field; did you mean %s?", path, near)
	}
	return fmt.Errorf("%s: unknown field", path)
}

// checkLeaf returns why the value does not fit the type. null fits every type: it unsets a value.
func checkLeaf(value any, t reflect.Type) error {
	if value == nil {
		return nil
	}
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(b, reflect.New(t).Interface()); err != nil {
		return fmt.Errorf("%s is not %s", b, describe(t))
	}
	return nil
}

// describe describes the valid values of a type.
func describe(t reflect.Type) string {
	switch t.String() {
	case "v1.Duration", "config.TimeOrDuration":
		return `a duration, such as "30s", "5m" or "1h30m"`
	case "resource.Quantity":
		return `a quantity, such as "100Mi" or "500m"`
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int32, reflect.Int64:
		return fmt.Sprintf("an integer of %d bits", t.Bits())
	case reflect.Uint32:
		return "an integer of 32 bits that is not negative"
	case reflect.Float64:
		return "a number"
	case reflect.String:
		return "text (in YAML, put it in quotes)"
	case reflect.Slice:
		return "a list"
	default:
		return "a map"
	}
}
