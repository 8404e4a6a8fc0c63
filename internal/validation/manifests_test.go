package validation

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/tools/txtar"
	kjson "sigs.k8s.io/json"

	"berth/internal/manifest/manifesttest"
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
func readManifests(t *testing.T) manifests {
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
			object := manifesttest.ReadYAML[map[string]any](t, f+": "+m.Name, m.Data)
			for _, d := range []struct{ path, value string }{
				{"apiVersion", "v1"}, {"kind", "Pod"}, {"metadata.name", "a"}, {"metadata.namespace", "default"}, {"spec.nodeName", "node-1"},
			} {
				if _, ok := manifesttest.GetField(object, d.path); !ok {
					manifesttest.SetField(object, d.path, d.value)
				}
			}
			all[m.Name] = object
		}
	}
	return all
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
