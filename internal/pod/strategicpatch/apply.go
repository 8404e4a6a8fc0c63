package strategicpatch

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// The directives of strategic merge patches that Generate writes.
const (
	directive  = "$patch"
	orderOf    = "$setElementOrder/"
	removedOf  = "$deleteFromPrimitiveList/"
	replaceAll = "replace"
	deleteItem = "delete"
)

// Apply applies the patch to an object of that type, a pointer to an API type, and returns the
// result. Both are JSON objects; neither is changed. It supports the output of Generate, and fails
// on other directives.
func Apply(object map[string]any, patch Patch, t reflect.Type) (map[string]any, error) {
	out := maps.Clone(object)
	if out == nil {
		out = map[string]any{}
	}
	for name, v := range patch {
		if strings.HasPrefix(name, orderOf) || strings.HasPrefix(name, removedOf) {
			continue // applied with the list of that name
		}
		if strings.HasPrefix(name, "$") {
			return nil, fmt.Errorf("patch: unknown directive %q", name)
		}
		f := fieldOf(t, name)
		var err error
		switch v := v.(type) {
		case nil:
			delete(out, name)
		case map[string]any:
			old, _ := out[name].(map[string]any)
			out[name], err = Apply(old, v, f.typ)
		case []any:
			if !f.merge {
				out[name] = v
			}
		default:
			out[name] = v
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, name := range mergedLists(patch, t) {
		if err := mergeInto(out, patch, name, fieldOf(t, name)); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return out, nil
}

// Merge applies a JSON merge patch (RFC 7386) to an object and returns the result. Neither is
// changed.
func Merge(object map[string]any, patch Patch) map[string]any {
	out := maps.Clone(object)
	if out == nil {
		out = map[string]any{}
	}
	for name, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(out, name)
		case map[string]any:
			old, _ := out[name].(map[string]any)
			out[name] = Merge(old, v)
		default:
			out[name] = v
		}
	}
	return out
}

// mergedLists returns the names of merged lists that the patch changes.
func mergedLists(patch map[string]any, t reflect.Type) []string {
	names := map[string]bool{}
	for name, v := range patch {
		if own, ok := strings.CutPrefix(name, orderOf); ok {
			names[own] = true
		} else if own, ok := strings.CutPrefix(name, removedOf); ok {
			names[own] = true
		} else if _, isList := v.([]any); isList && fieldOf(t, name).merge {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// mergeInto applies the patch to the list of that name in out.
func mergeInto(out, patch map[string]any, name string, f field) error {
	old, _ := out[name].([]any)
	items, err := listOf(patch, name)
	if err != nil {
		return err
	}
	order, err := listOf(patch, orderOf+name)
	if err != nil {
		return err
	}
	removed, err := listOf(patch, removedOf+name)
	if err != nil {
		return err
	}
	l := merging{key: f.mergeKey, elem: elem(f.typ)}
	var merged []any
	if f.mergeKey == "" {
		merged = slices.DeleteFunc(slices.Concat(old, items), func(v any) bool { return slices.Contains(removed, v) })
		merged = unique(merged)
	} else if merged, err = l.merge(old, items); err != nil {
		return err
	}
	if order == nil {
		order = items
	}
	out[name] = l.sorted(merged, order, old)
	return nil
}

func listOf(patch map[string]any, name string) ([]any, error) {
	v, ok := patch[name]
	if !ok || v == nil {
		return nil, nil
	}
	items, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("patch: %q is no list", name)
	}
	return items, nil
}

func unique(values []any) []any {
	var out []any
	for _, v := range values {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// merging merges lists of one field.
type merging struct {
	key  string // "" if elements are values
	elem reflect.Type
}

// of returns the key of an element.
func (l merging) of(item any) any {
	if l.key == "" {
		return item
	}
	fields, _ := item.(map[string]any)
	return fields[l.key]
}

func (l merging) index(items []any, id any) int {
	return slices.IndexFunc(items, func(v any) bool { return l.of(v) == id })
}

// merge merges elements by their key.
func (l merging) merge(old, items []any) ([]any, error) {
	out := slices.Clone(old)
	for _, item := range items {
		fields, ok := item.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("patch: an element is no object but %T", item)
		}
		switch d := fields[directive]; {
		case d == replaceAll:
			rest := slices.DeleteFunc(slices.Clone(items), func(v any) bool {
				f, ok := v.(map[string]any)
				return ok && f[directive] == replaceAll
			})
			return rest, nil
		case d == deleteItem:
			out = slices.DeleteFunc(out, func(v any) bool { return l.of(v) == fields[l.key] })
			continue
		case d != nil:
			return nil, fmt.Errorf("patch: unknown directive %v of an element", d)
		}
		if fields[l.key] == nil {
			return nil, fmt.Errorf("patch: an element has no %s", l.key)
		}
		var was map[string]any
		i := l.index(out, fields[l.key])
		if i >= 0 {
			was, _ = out[i].(map[string]any)
		}
		merged, err := Apply(was, fields, l.elem)
		if err != nil {
			return nil, err
		}
		if i >= 0 {
			out[i] = merged
		} else {
			out = append(out, merged)
		}
	}
	return out, nil
}

// sorted sorts elements in the order of the patch. Elements that it does not name keep their place
// relative to those that it does.
func (l merging) sorted(items, order, old []any) []any {
	var named, others []any
	for _, v := range order {
		if i := l.index(items, l.of(v)); i >= 0 {
			named = append(named, items[i])
		}
	}
	for _, v := range items {
		if l.index(order, l.of(v)) < 0 {
			others = append(others, v)
		}
	}
	// A new element is placed before the next existing one, or else directly after the one before
	// it.
	places := make([]int, len(named))
	for i, next := len(named)-1, -1; i >= 0; i-- {
		if was := l.index(old, l.of(named[i])); was >= 0 {
			next = was
		}
		places[i] = next
	}
	var out []any
	for i, v := range named {
		for len(others) > 0 {
			if was := l.index(old, l.of(others[0])); was < 0 || was > places[i] {
				break
			}
			out, others = append(out, others[0]), others[1:]
		}
		out = append(out, v)
	}
	return append(out, others...)
}
