package validation

import (
	"bytes"
	"os"
	"testing"

	kjson "sigs.k8s.io/json"

	"berth/internal/source/manifest/manifesttest"
)

// What a real API server made of the manifests, and of mutants of them, is kept in
// testdata/apiserver; `make goldens` asks it again.
const (
	goldens          = "testdata/apiserver"
	goldensDefaulted = goldens + "/defaulted.jsonl"
	goldensRefused   = goldens + "/mutants.jsonl"
	goldensSample    = goldens + "/sample.jsonl"
	goldensVersion   = goldens + "/version"
)

// manifests are the objects of the archives, by name.
type manifests = map[string]map[string]any

// readManifests returns all manifests, complete.
func readManifests(t *testing.T) manifests {
	t.Helper()
	return manifesttest.Objects(t, goldens)
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
