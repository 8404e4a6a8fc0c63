// Package strategicpatch generates and applies strategic merge patches (Kubernetes documentation,
// "Update API Objects in Place Using kubectl patch"). The library
// apimachinery/pkg/util/strategicpatch gives the same results, but links the OpenAPI parsers.
//
// Owns: nothing.
// Reads: the tags patchStrategy and patchMergeKey of API types.
// Never: calls the API server.
package strategicpatch

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Patch is a strategic merge patch. It is empty if there are no differences.
type Patch map[string]any

// Generate returns the patch from the parts of old that part selects to those of changed. T is a
// pointer to an API type. Lists named in replaced are sent as a whole: the server drops its other
// elements.
func Generate[T any](old, changed T, part Part, replaced ...string) (Patch, error) {
	from, err := runtime.DefaultUnstructuredConverter.ToUnstructured(old)
	if err != nil {
		return nil, fmt.Errorf("patch of %T: %w", old, err)
	}
	to, err := runtime.DefaultUnstructuredConverter.ToUnstructured(changed)
	if err != nil {
		return nil, fmt.Errorf("patch of %T: %w", changed, err)
	}
	return differ{replaced}.fields(part(from), part(to), reflect.TypeFor[T]()), nil
}

// Encode returns the patch in JSON with the UID as its precondition: the server rejects it for
// another object of the same name.
func (p Patch) Encode(uid types.UID) ([]byte, error) {
	if uid != "" {
		p = maps.Clone(p)
		metadata, _ := p["metadata"].(map[string]any)
		metadata = maps.Clone(metadata)
		if metadata == nil {
			metadata = map[string]any{}
		}
		metadata["uid"] = string(uid)
		p["metadata"] = metadata
	}
	return json.Marshal(p)
}

// Part selects fields of an object.
type Part func(object map[string]any) map[string]any

// All selects all fields.
func All(object map[string]any) map[string]any { return object }

// OnlyStatus selects the status.
func OnlyStatus(object map[string]any) map[string]any {
	if status, ok := object["status"]; ok {
		return map[string]any{"status": status}
	}
	return map[string]any{}
}

// WithoutStatus selects all fields except the status.
func WithoutStatus(object map[string]any) map[string]any {
	object = maps.Clone(object)
	delete(object, "status")
	return object
}

// differ computes strategic merge patches of JSON values, by the tags patchStrategy and
// patchMergeKey of their types.
type differ struct {
	replaced []string // names of lists that are never merged
}

// fields returns the patch from one JSON object to another. t is their Go type: a struct, or a map
// to anything.
func (d differ) fields(from, to map[string]any, t reflect.Type) map[string]any {
	patch := map[string]any{}
	for name := range from {
		if _, stays := to[name]; !stays {
			patch[name] = nil
		}
	}
	for name, new := range to {
		old, had := from[name]
		if had && reflect.DeepEqual(old, new) {
			continue
		}
		f := fieldOf(t, name)
		oldFields, wasObject := old.(map[string]any)
		newFields, isObject := new.(map[string]any)
		oldItems, _ := old.([]any)
		newItems, isList := new.([]any)
		switch {
		case wasObject && isObject:
			patch[name] = d.fields(oldFields, newFields, f.typ)
		case isList && f.merge && slices.Contains(d.replaced, name):
			patch[name] = append([]any{map[string]any{"$patch": "replace"}}, newItems...)
		case isList && len(oldItems) > 0 && f.merge:
			d.list(patch, name, oldItems, newItems, f)
		default:
			patch[name] = new
		}
	}
	return patch
}

// list adds the change of a list that the server merges to patch.
func (d differ) list(patch map[string]any, name string, from, to []any, f field) {
	if f.mergeKey == "" {
		d.values(patch, name, from, to)
		return
	}
	old, oldUnique := byKey(from, f.mergeKey)
	new, newUnique := byKey(to, f.mergeKey)
	if !oldUnique || !newUnique {
		patch[name] = append([]any{map[string]any{"$patch": "replace"}}, to...)
		return
	}
	var items, order []any
	for _, item := range to {
		item := item.(map[string]any)
		key := item[f.mergeKey]
		order = append(order, map[string]any{f.mergeKey: key})
		was, had := old[key]
		if !had {
			items = append(items, item)
			continue
		}
		if change := d.fields(was, item, elem(f.typ)); len(change) > 0 {
			change[f.mergeKey] = key
			items = append(items, change)
		}
	}
	for _, item := range from {
		key := item.(map[string]any)[f.mergeKey]
		if _, stays := new[key]; !stays {
			items = append(items, map[string]any{"$patch": "delete", f.mergeKey: key})
		}
	}
	if len(items) > 0 {
		patch[name] = items
	}
	if len(order) > 0 {
		patch["$setElementOrder/"+name] = order
	}
}

// values is list for elements without fields, such as the names of finalizers.
func (d differ) values(patch map[string]any, name string, from, to []any) {
	var added, removed []any
	for _, v := range to {
		if !slices.Contains(from, v) {
			added = append(added, v)
		}
	}
	for _, v := range from {
		if !slices.Contains(to, v) {
			removed = append(removed, v)
		}
	}
	if len(added) > 0 {
		patch[name] = added
	}
	if len(removed) > 0 {
		patch["$deleteFromPrimitiveList/"+name] = removed
	}
	if len(to) > 0 {
		patch["$setElementOrder/"+name] = to
	}
}

// byKey indexes the elements of a list. unique is false if two have the same key or one has none.
func byKey(items []any, key string) (index map[any]map[string]any, unique bool) {
	index = make(map[any]map[string]any, len(items))
	for _, item := range items {
		fields, ok := item.(map[string]any)
		if !ok || fields[key] == nil {
			return nil, false
		}
		if _, twice := index[fields[key]]; twice {
			return nil, false
		}
		index[fields[key]] = fields
	}
	return index, true
}

// field has a type's properties of one of its fields.
type field struct {
	typ      reflect.Type // nil if unknown
	merge    bool
	mergeKey string
}

func fieldOf(t reflect.Type, name string) field {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() == reflect.Interface {
		return field{}
	}
	if t.Kind() == reflect.Map {
		return field{typ: t.Elem()}
	}
	if t.Kind() != reflect.Struct {
		return field{}
	}
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case tag == name:
			strategies := strings.Split(f.Tag.Get("patchStrategy"), ",")
			return field{typ: f.Type, merge: slices.Contains(strategies, "merge"), mergeKey: f.Tag.Get("patchMergeKey")}
		case tag == "" && f.Anonymous:
			if inner := fieldOf(f.Type, name); inner.typ != nil {
				return inner
			}
		}
	}
	return field{}
}

func elem(t reflect.Type) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Slice {
		return nil
	}
	return t.Elem()
}
