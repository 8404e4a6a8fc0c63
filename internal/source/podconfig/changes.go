package podconfig

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

const (
	// fewChanges limits the changed fields in a journal entry.
	fewChanges = 5
	// longestValue limits the bytes of a value in the journal.
	longestValue = 60
)

// private are fields whose values may be secrets: the journal names only the fields.
var private = map[string]bool{
	"env": true, "command": true, "args": true, "annotations": true, "httpHeaders": true, "volumeAttributes": true, "options": true,
}

// describeChanges names the fields in which the specs differ, with the old and the new value.
func describeChanges(old, now *v1.Pod) string {
	var changes []string
	collectChanges(asJSON(old.Spec), asJSON(now.Spec), "spec", func(path, was, is string) {
		changes = append(changes, joinChange(path, was, is))
	})
	for _, part := range computeDifference(old, now) {
		if part != "spec" || len(changes) == 0 { // else its fields are named
			changes = append(changes, part)
		}
	}
	if more := len(changes) - fewChanges; more > 0 {
		changes = append(changes[:fewChanges], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(changes, "; ")
}

func joinChange(path, was, is string) string {
	switch {
	case was == "" && is == "":
		return path + " changed"
	case was == "":
		return fmt.Sprintf("%s set to %s", path, is)
	case is == "":
		return fmt.Sprintf("%s %s taken away", path, was)
	}
	return fmt.Sprintf("%s %s → %s", path, was, is)
}

// asJSON returns the generic JSON form of the object.
func asJSON(object any) (out any) {
	b, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		return nil // unreachable: API types are valid JSON
	}
	return out
}

// collectChanges calls add for each field that differs, with "" for a missing value. List items are
// compared by name if they have names.
func collectChanges(was, is any, path string, add func(path, was, is string)) {
	a, b := itemsOf(was), itemsOf(is)
	if a == nil || b == nil {
		if x, y := valueText(was), valueText(is); x != y {
			add(path, x, y)
		}
		return
	}
	keys := maps.Clone(a)
	maps.Copy(keys, b)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		at := path + key
		if private[strings.TrimPrefix(key, ".")] {
			if x, y := fullText(a[key]), fullText(b[key]); x != y {
				add(at, "", "")
			}
			continue
		}
		collectChanges(a[key], b[key], at, add)
	}
}

// itemsOf returns the fields of an object, or the items of a list of named objects, by path suffix;
// nil for anything else.
func itemsOf(v any) map[string]any {
	out := map[string]any{}
	switch v := v.(type) {
	case map[string]any:
		for k, field := range v {
			out["."+k] = field
		}
	case []any:
		for _, item := range v {
			object, _ := item.(map[string]any)
			name, ok := object["name"].(string)
			if !ok {
				return nil
			}
			out["["+name+"]"] = item
		}
	default:
		return nil
	}
	return out
}

// fullText returns a value as JSON, "" for none.
func fullText(v any) string {
	if v == nil {
		return ""
	}
	b, err := json.Marshal(v)
	if err != nil {
		return "" // unreachable: the value came from JSON
	}
	return string(b)
}

// valueText returns a value for the journal: for an object or list, which may contain secrets, only
// the size.
func valueText(v any) string {
	switch v.(type) {
	case map[string]any, []any:
		return fmt.Sprintf("(%d bytes)", len(fullText(v)))
	}
	text := fullText(v)
	if len(text) > longestValue {
		text = strings.ToValidUTF8(text[:longestValue], "") + "…"
	}
	return text
}
