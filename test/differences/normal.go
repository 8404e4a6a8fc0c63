package differences

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

func decode(body []byte) any {
	var v any
	if json.Unmarshal(body, &v) != nil {
		return nil
	}
	return v
}

// What differs from server to server, and the word for it.
var words = []struct {
	pattern *regexp.Regexp
	word    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	// Times of the corpus are older.
	{regexp.MustCompile(`20(2[4-9]|[3-9][0-9])-[0-9]{2}-[0-9]{2}T[0-9:]{8}(\.[0-9]+)?Z`), "TIME"},
	{regexp.MustCompile(`20(2[4-9]|[3-9][0-9])-[0-9]{2}-[0-9]{2} [0-9:]{8}(\.[0-9]+)? \+0000 UTC`), "TIME"},
	{regexp.MustCompile(`kube-api-access-[a-z0-9]{5}`), "kube-api-access-GENERATED"},
	{regexp.MustCompile(`(resourceVersion\\*":\\*")[0-9]+`), "${1}VERSION"},
	{regexp.MustCompile(`(resourceVersion:)[0-9]+`), "${1}VERSION"}, // of a map that is printed
	{regexp.MustCompile(`(ResourceVersion in (?:record|the precondition) \()[0-9]+`), "${1}VERSION"},
	{regexp.MustCompile(`(ResourceVersion in (?:precondition|object meta): )[0-9]+`), "${1}VERSION"},
	// Of a UID that is taken for a time, the digits that may be a year are read.
	{regexp.MustCompile(`cannot parse \\*"[0-9a-f-]{30,36}\\*" as \\*"[^"\\]*\\*"`), "cannot parse UID"},
	{regexp.MustCompile(`cannot parse \\*"UID\\*" as \\*"[^"\\]*\\*"`), "cannot parse UID"},
	{regexp.MustCompile(`0x[0-9a-f]{6,}`), "POINTER"}, // some messages print them
}

// normal is an answer in the form in which the answers of both sides are the same.
func (s *side) normal(a answer) map[string]any {
	out := map[string]any{"code": strconv.Itoa(a.code), "type": a.mime}
	for i, w := range a.warnings {
		out[fmt.Sprintf("warning %d", i)] = s.worded(w)
	}
	body := a.body
	if a.mime == "application/yaml" {
		if asJSON, err := yaml.YAMLToJSON(body); err == nil {
			body = asJSON
		}
	}
	if v := decode(body); v != nil {
		out["body"] = s.same(v, "")
	} else {
		out["body"] = s.worded(string(body))
	}
	return out
}

// worded puts into a text the words for what differs.
func (s *side) worded(text string) string {
	for _, generated := range s.generators {
		text = generated.ReplaceAllString(text, "GENERATED")
	}
	text = strings.NewReplacer(s.name, "@name@", s.namespace, "@ns@").Replace(text)
	if before, list, found := strings.Cut(text, ": errors:\n"); found { // of a patch, in any order
		lines := strings.Split(list, "\n")
		slices.Sort(lines)
		text = before + ": errors:\n" + strings.Join(lines, "\n")
	}
	for _, w := range words {
		text = w.pattern.ReplaceAllString(text, w.word)
	}
	return text
}

// age is how tables show how old something is.
var age = regexp.MustCompile(`^([0-9]+[smhdy])+$`)

// same makes a value the same on both sides. under is the name of the field that has it.
func (s *side) same(v any, under string) any {
	switch v := v.(type) {
	case map[string]any:
		sortMessage(v)
		out := make(map[string]any, len(v))
		for name, value := range v {
			_, isText := value.(string)
			switch {
			case under == "metadata" && name == "resourceVersion" && isText:
				value = "VERSION"
			case under == "status" && name == "token" && isText:
				value = "TOKEN"
			case under == "metadata" && name == "continue" && isText:
				value = "CONTINUE"
			}
			if under == "data" && isText {
				value = s.encoded(value.(string))
			}
			out[s.worded(name)] = s.same(value, name)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = s.same(v[i], under)
		}
		if under == "managedFields" || under == "causes" {
			// Their order hangs on times, or on nothing.
			slices.SortStableFunc(out, func(a, b any) int { return strings.Compare(canonical(a), canonical(b)) })
		}
		return out
	case string:
		if under == "cells" && age.MatchString(v) {
			return "AGE"
		}
		return s.worded(v)
	}
	return v
}

// encoded is a value in base64: where words stand for something in it, it is shown as text.
func (s *side) encoded(value string) string {
	text, err := base64.StdEncoding.DecodeString(value)
	if err != nil || s.worded(string(text)) == string(text) {
		return value
	}
	return "base64 of " + s.worded(string(text))
}

// sortMessage takes the list of faults out of the message of a Status: the causes beside it have
// them all, and a server lists those of a map in any order.
func sortMessage(status map[string]any) {
	message, _ := status["message"].(string)
	details, _ := status["details"].(map[string]any)
	causes, _ := details["causes"].([]any)
	if before, _, found := strings.Cut(message, " is invalid: ["); found && len(causes) > 1 {
		status["message"] = before + " is invalid: [CAUSES]"
	}
}

func canonical(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

// fault is a place where two answers differ.
type fault struct {
	path string
	a, b any // nil: nothing is there
}

// String is the fault as one reads it.
func (f fault) String() string {
	return fmt.Sprintf("%s\n    A: %s\n    B: %s", f.path, shown(f.a), shown(f.b))
}

func shown(v any) string {
	if v == nil {
		return "nothing"
	}
	text := filling.ReplaceAllString(canonical(v), "(many x)")
	if len(text) > 600 {
		text = text[:600] + "…"
	}
	return text
}

// faults lists where two values differ, sorted by path.
func faults(path string, a, b any) []fault {
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok {
			break
		}
		var out []fault
		names := map[string]bool{}
		for name := range x {
			names[name] = true
		}
		for name := range y {
			names[name] = true
		}
		sorted := make([]string, 0, len(names))
		for name := range names {
			sorted = append(sorted, name)
		}
		slices.Sort(sorted)
		for _, name := range sorted {
			out = append(out, faults(path+"."+name, x[name], y[name])...)
		}
		return out
	case []any:
		y, ok := b.([]any)
		if !ok || len(x) != len(y) {
			break
		}
		var out []fault
		for i := range x {
			out = append(out, faults(fmt.Sprintf("%s[%d]", path, i), x[i], y[i])...)
		}
		return out
	}
	if canonical(a) == canonical(b) {
		return nil
	}
	return []fault{{path, a, b}}
}
