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
	// fewChanges is how many changed fields the journal names.
	fewChanges = 5
	// longestValue is how many bytes of a value the journal shows.
	longestValue = 60
)

// private are fields whose values may be secrets: of them the journal says that they changed.
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

// asJSON returns the object as JSON has it.
func asJSON(object any) (out any) {
	b, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		return nil // API types are always written and read
	}
	return out
}

// collectChanges calls add for each field that differs, "" for a value that is not there. Items of
// lists are compared by their names where they have some.
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

// itemsOf returns the fields of an object, or the items of a list of objects with names, by how
// they are written behind their path; nil for anything else.
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

// fullText is a value as JSON, "" for none.
func fullText(v any) string {
	if v == nil {
		return ""
	}
	b, err := json.Marshal(v)
	if err != nil {
		return "" // what came from JSON can be written
	}
	return string(b)
}

// valueText is a value as the journal shows it: of one with parts, which may hold anything, only
// that it is there.
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
