package podconfig

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// What a real API server made of the manifests, and of mutants of them, is kept in testdata/apiserver; `make goldens` asks it again.
const (
	goldens          = "testdata/apiserver"
	goldensDefaulted = goldens + "/defaulted.jsonl"
	goldensRefused   = goldens + "/mutants.jsonl"
	goldensSample    = goldens + "/sample.jsonl"
	goldensVersion   = goldens + "/version"
)

// manifests are the objects of the archives, by name.
type manifests map[string]map[string]any

// readManifests returns all manifests, complete: each has the kind, a name and a node, as a pod of this node has when it is validated.
func readManifests(t testing.TB) manifests {
	t.Helper()
	files, err := filepath.Glob(goldens + "/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	all := manifests{}
	for _, f := range files {
		archive, err := txtar.ParseFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range archive.Files {
			if all[m.Name] != nil {
				t.Fatalf("%s: there are two manifests %q", f, m.Name)
			}
			object := readYAML[map[string]any](t, f+": "+m.Name, m.Data)
			for _, d := range []struct{ path, value string }{
				{"apiVersion", "v1"}, {"kind", "Pod"}, {"metadata.name", "a"}, {"metadata.namespace", "default"}, {"spec.nodeName", node},
			} {
				if _, ok := getField(object, d.path); !ok {
					setField(object, d.path, d.value)
				}
			}
			all[m.Name] = object
		}
	}
	return all
}

// addManifests makes the manifests seeds, as JSON: most of what a fuzzer makes of them is a pod too.
func addManifests(f *testing.F, add func(manifest []byte)) {
	f.Helper()
	all := readManifests(f)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		text, err := json.Marshal(all[name])
		if err != nil {
			f.Fatalf("%s: %v", name, err)
		}
		add(text)
	}
}

// readYAML decodes YAML into values as JSON has them, integers as int64.
func readYAML[T any](t testing.TB, name string, text []byte) T {
	t.Helper()
	raw, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var v T
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

// readLines decodes a file of JSON values, one a line.
func readLines[T any](t *testing.T, file string) []T {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []T
	for line := range bytes.Lines(text) {
		var v T
		if err := kjson.UnmarshalCaseSensitivePreserveInts(line, &v); err != nil {
			t.Fatalf("%s:%d: %v", file, len(all)+1, err)
		}
		all = append(all, v)
	}
	return all
}

// splitPath splits a field path: "a.b[0].c[d.e/f]" has the members a, b, 0, c, d.e/f.
func splitPath(path string) []string {
	var members []string
	for path != "" {
		if rest, ok := strings.CutPrefix(path, "["); ok {
			var member string
			member, path, _ = strings.Cut(rest, "]")
			members = append(members, member)
			continue
		}
		path = strings.TrimPrefix(path, ".")
		end := strings.IndexAny(path, ".[")
		if end < 0 {
			end = len(path)
		}
		members = append(members, path[:end])
		path = path[end:]
	}
	return members
}

func getField(object any, path string) (any, bool) {
	for _, member := range splitPath(path) {
		switch v := object.(type) {
		case map[string]any:
			e, ok := v[member]
			if !ok {
				return nil, false
			}
			object = e
		case []any:
			i, err := strconv.Atoi(member)
			if err != nil || i >= len(v) {
				return nil, false
			}
			object = v[i]
		default:
			return nil, false
		}
	}
	return object, true
}

// setField sets the field, or removes it if value is nil. It makes the objects on the way, and appends to a list of which the index is
// the length. It reports whether there was a place for it.
func setField(object map[string]any, path string, value any) bool {
	members := splitPath(path)
	_, ok := setMember(object, members, value)
	return ok
}

func setMember(v any, members []string, value any) (any, bool) {
	if len(members) == 0 {
		return value, true
	}
	switch c := v.(type) {
	case nil:
		if members[0] == "0" {
			return setMember([]any{}, members, value)
		}
		return setMember(map[string]any{}, members, value)
	case map[string]any:
		e, ok := setMember(c[members[0]], members[1:], value)
		if c[members[0]] = e; e == nil {
			delete(c, members[0])
		}
		return c, ok
	case []any:
		i, err := strconv.Atoi(members[0])
		switch {
		case err != nil || i > len(c):
			return v, false
		case i == len(c):
			c = append(c, nil)
		}
		e, ok := setMember(c[i], members[1:], value)
		if c[i] = e; e == nil {
			c = slices.Delete(c, i, i+1)
		}
		return c, ok
	}
	return v, false
}
