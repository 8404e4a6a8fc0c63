// Package manifesttest provides manifests for tests, and access to their fields by path.
//
// Owns: nothing.
// Reads: nothing.
// Never: imports a package of the product, so that the tests of each can use it.
package manifesttest

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Pod returns the YAML of a small pod.
func Pod(name, image string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata:\n  name: " + name + "\nspec:\n  containers:\n  - name: c\n    image: " + image + "\n"
}

// Object returns a manifest of the kind with the name "o" and further lines.
func Object(kind string, lines ...string) string {
	return "apiVersion: v1\nkind: " + kind + "\nmetadata: {name: o}\n" + strings.Join(lines, "\n") + "\n"
}

// Parse decodes a YAML value of the API.
func Parse[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return v
}

// ReadYAML decodes YAML into generic JSON values, with integers as int64.
func ReadYAML[T any](t testing.TB, name string, text []byte) T {
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

// GetField returns the value of the field, if there is one.
func GetField(object any, path string) (any, bool) {
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

// SetField sets the field, or removes it if value is nil. It creates missing parents, and appends
// to a list if the index equals its length. It reports whether the path is valid.
func SetField(object map[string]any, path string, value any) bool {
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

// Objects returns the objects of the archives in a folder by their names, complete: each has a
// kind, a name and a node, as a pod of a node has when it is validated.
func Objects(t testing.TB, folder string) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob(folder + "/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests in %s: %v", folder, err)
	}
	all := map[string]map[string]any{}
	for _, f := range files {
		archive, err := txtar.ParseFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range archive.Files {
			if all[m.Name] != nil {
				t.Fatalf("%s: there are two manifests %q", f, m.Name)
			}
			object := ReadYAML[map[string]any](t, f+": "+m.Name, m.Data)
			for _, d := range []struct{ path, value string }{
				{"apiVersion", "v1"}, {"kind", "Pod"}, {"metadata.name", "a"}, {"metadata.namespace", "default"}, {"spec.nodeName", "node-1"},
			} {
				if _, ok := GetField(object, d.path); !ok {
					SetField(object, d.path, d.value)
				}
			}
			all[m.Name] = object
		}
	}
	return all
}

// AddSeeds gives a fuzzer the objects of the archives in a folder, as JSON: most of what it makes
// of them is a pod too.
func AddSeeds(f *testing.F, folder string, add func(manifest []byte)) {
	f.Helper()
	all := Objects(f, folder)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		text, err := json.Marshal(all[name])
		if err != nil {
			f.Fatalf("%s: %v", name, err)
		}
		add(text)
	}
}
