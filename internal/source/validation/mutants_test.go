package validation

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"berth/internal/source/manifest/manifesttest"
)

// mutant is a manifest in which some fields are set to something else.
type mutant struct {
	Base string `json:"base"`
	// Set has the values by field path; null removes the field. See expand for values that are too
	// long to be written out.
	Set map[string]any `json:"set"`
}

func (m mutant) String() string {
	b, _ := json.Marshal(m.Set) // came from JSON
	return m.Base + " " + string(b)
}

// object returns the mutant itself.
func (m mutant) object(t *testing.T, all manifests) map[string]any {
	t.Helper()
	base, ok := all[m.Base]
	if !ok {
		t.Fatalf("there is no manifest %q", m.Base)
	}
	object := clone(base)
	for _, path := range slices.Sorted(maps.Keys(m.Set)) {
		if !manifesttest.SetField(object, path, expand(clone(m.Set[path]))) {
			t.Fatalf("%s: there is no place for %s", m, path)
		}
	}
	return object
}

func clone[T any](v T) T {
	switch v := any(v).(type) {
	case map[string]any:
		c := make(map[string]any, len(v))
		for k, e := range v {
			c[k] = clone(e)
		}
		return any(c).(T)
	case []any:
		c := make([]any, len(v))
		for i, e := range v {
			c[i] = clone(e)
		}
		return any(c).(T)
	}
	return v
}

// expand writes out {"$times": n, "$of": v}: n times the text v, or a list of n values v; in the
// texts of these % is the value's index.
func expand(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = expand(v[i])
		}
	case map[string]any:
		if times, ok := v["$times"].(int64); ok {
			if text, ok := v["$of"].(string); ok {
				return strings.Repeat(text, int(times))
			}
			list := make([]any, times)
			for i := range list {
				list[i] = number(v["$of"], i)
			}
			return list
		}
		for k := range v {
			v[k] = expand(v[k])
		}
	}
	return v
}

func number(v any, i int) any {
	switch v := v.(type) {
	case string:
		return strings.ReplaceAll(v, "%", strconv.Itoa(i))
	case []any:
		c := make([]any, len(v))
		for j := range v {
			c[j] = number(v[j], i)
		}
		return c
	case map[string]any:
		c := make(map[string]any, len(v))
		for k := range v {
			c[strings.ReplaceAll(k, "%", strconv.Itoa(i))] = number(v[k], i)
		}
		return c
	}
	return v
}

// generateMutants returns the mutants that are judged, in a fixed order: those of every field, then
// those of the tables.
func generateMutants(t *testing.T, all manifests) []mutant {
	t.Helper()
	var mutants []mutant
	seen := map[string]struct{}{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		mutants = append(mutants, mutant{Base: name})
		for _, m := range mutateFields("", all[name], seen) {
			m.Base = name
			mutants = append(mutants, m)
		}
	}
	return append(mutants, readMutations(t)...)
}

var index = regexp.MustCompile(`\[[0-9]+\]`)

// mutateFields returns mutants of v, which stands at path, and of what is in it: every value that
// is wrong for fields of its kind. A field that occurs in several manifests, or elements of a list,
// is mutated once; seen has those that were.
func mutateFields(path string, v any, seen map[string]struct{}) []mutant {
	var mutants []mutant
	addAt := func(at, what string, value any) {
		key := index.ReplaceAllString(path, "[]") + " " + what
		if _, ok := seen[key]; !ok {
			seen[key] = struct{}{}
			mutants = append(mutants, mutant{Set: map[string]any{at: value}})
		}
	}
	add := func(what string, value any) { addAt(path, what, value) }
	// Those of the object itself are checked before it is a pod.
	if path != "" && !slices.Contains([]string{"apiVersion", "kind", "metadata.namespace"}, path) {
		add("removed", nil)
		switch v := v.(type) {
		case string:
			add("empty", "")
			add("long", map[string]any{"$times": int64(300), "$of": "x"})
			add("odd", "Not Valid!")
			add("up", "../up")
		case int64, float64:
			for _, n := range []int64{-1, 0, 65536, 1 << 31} {
				add(strconv.FormatInt(n, 10), n)
			}
		case bool:
			add("inverted", !v)
		case []any:
			add("empty", []any{})
			if len(v) > 0 {
				end := path + "[" + strconv.Itoa(len(v)) + "]"
				addAt(end, "doubled", v[0])
				addAt(end, "empty element", zeroLike(v[0]))
			}
		case map[string]any:
			add("empty", map[string]any{})
		}
	}
	switch v := v.(type) {
	case []any:
		for i, e := range v {
			mutants = append(mutants, mutateFields(path+"["+strconv.Itoa(i)+"]", e, seen)...)
		}
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			member := "." + k
			if strings.ContainsAny(k, "./") {
				member = "[" + k + "]"
			}
			mutants = append(mutants, mutateFields(strings.TrimPrefix(path+member, "."), v[k], seen)...)
		}
	}
	return mutants
}

func zeroLike(v any) any {
	switch v.(type) {
	case string:
		return ""
	case map[string]any:
		return map[string]any{}
	}
	return int64(0)
}

// mutations is a table of mutants of one manifest.
type mutations struct {
	Base string `json:"base"`
	// Each value of a field alone is a mutant.
	Each map[string][]any `json:"each"`
	// Sets are mutants in which several fields are set.
	Sets []map[string]any `json:"sets"`
}

// readMutations returns the mutants of the tables.
func readMutations(t *testing.T) []mutant {
	t.Helper()
	files, err := filepath.Glob(goldens + "/mutations/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var mutants []mutant
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range manifesttest.ReadYAML[[]mutations](t, f, text) {
			for _, path := range slices.Sorted(maps.Keys(table.Each)) {
				for _, value := range table.Each[path] {
					mutants = append(mutants, mutant{Base: table.Base, Set: map[string]any{path: value}})
				}
			}
			for _, set := range table.Sets {
				mutants = append(mutants, mutant{Base: table.Base, Set: set})
			}
		}
	}
	return mutants
}
