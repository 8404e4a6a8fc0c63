package coveragetest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Repository returns the root of the module.
func Repository(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	t.Fatalf("no go.mod above the test: %v", err)
	return ""
}

// testsOf caches, by directory, the files of test functions by their names.
var testsOf = map[string]map[string]string{}

// CheckTest checks that the test of a row exists, as "internal/config TestLoad/defaults". With
// words, its file or scenario must contain one of them.
func CheckTest(t *testing.T, evidence string, words ...string) {
	t.Helper()
	parts := strings.Fields(evidence)
	if len(parts) != 2 || !strings.HasPrefix(parts[1], "Test") {
		t.Fatalf("%q is no folder and test", evidence)
	}
	folder := filepath.Join(Repository(t), parts[0])
	name, story, hasStory := strings.Cut(parts[1], "/")
	if _, ok := testsOf[folder]; !ok {
		testsOf[folder] = readTests(t, folder)
	}
	file, ok := testsOf[folder][name]
	if !ok {
		t.Fatalf("%s has no test %s", parts[0], name)
	}
	if hasStory {
		file = filepath.Join(folder, "testdata", story+".txtar")
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%s has no story %s: %v", parts[0], story, err)
	}
	for i, w := range words {
		words[i] = regexp.QuoteMeta(w)
	}
	if len(words) > 0 && !regexp.MustCompile(`\b(`+strings.Join(words, "|")+`)\b`).Match(content) {
		t.Errorf("%s speaks of none of %q", filepath.Base(file), words)
	}
}

// readTests returns the files of a directory's test functions, regardless of their build
// constraints.
func readTests(t *testing.T, folder string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no tests: %v", folder, err)
	}
	out := map[string]string{}
	for _, path := range files {
		for _, d := range ParseFile(t, path).Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				out[f.Name.Name] = path
			}
		}
	}
	return out
}

// ParseFile parses a Go file.
func ParseFile(t *testing.T, path string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
