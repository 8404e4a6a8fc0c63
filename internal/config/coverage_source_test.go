package config

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// repository is the root of the module, from here.
const repository = "../.."

// testsOf are the names of the test functions of each folder that was asked for.
var testsOf = map[string][]string{}

// checkTest checks that there is the test that a row names, as "internal/config TestLoad/defaults".
func checkTest(t *testing.T, evidence string) {
	t.Helper()
	words := strings.Fields(evidence)
	if len(words) != 2 || !strings.HasPrefix(words[1], "Test") {
		t.Fatalf("%q is no folder and test", evidence)
	}
	folder, name := words[0], words[1]
	name, story, hasStory := strings.Cut(name, "/")
	if _, ok := testsOf[folder]; !ok {
		testsOf[folder] = readTests(t, filepath.Join(repository, folder))
	}
	if !slices.Contains(testsOf[folder], name) {
		t.Errorf("%s has no test %s", folder, name)
	}
	if hasStory {
		if _, err := os.Stat(filepath.Join(repository, folder, "testdata", story+".txtar")); err != nil {
			t.Errorf("%s has no story %s: %v", folder, story, err)
		}
	}
}

// readTests returns the names of the test functions of a folder, whatever their build constraints.
func readTests(t *testing.T, folder string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no tests: %v", folder, err)
	}
	var names []string
	for _, path := range files {
		for _, d := range parseFile(t, path).Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}

func parseFile(t *testing.T, path string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// product is what the code of the agent speaks of.
type product struct {
	selectors map[string]bool // x.Name, but for what fills in and checks the configuration
	gates     map[string]bool // the texts of files that ask for gates
}

var readOnce struct {
	sync.Once
	product
}

// readProduct reads the code of the agent that is no test.
func readProduct(t *testing.T) product {
	t.Helper()
	readOnce.Do(func() {
		readOnce.product = product{selectors: map[string]bool{}, gates: map[string]bool{}}
		for _, folder := range []string{"agent", "cmd", "internal"} {
			err := filepath.WalkDir(filepath.Join(repository, folder), func(path string, _ fs.DirEntry, err error) error {
				if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
					readOnce.add(parseFile(t, path), path)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	})
	return readOnce.product
}

func (p product) add(file *ast.File, path string) {
	fills := slices.Contains([]string{"v1beta1.go", "defaults.go"}, filepath.Base(path)) || strings.HasPrefix(filepath.Base(path), "validate")
	var texts []string
	asks := false
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			asks = asks || n.Sel.Name == "FeatureEnabled" || n.Sel.Name == "needsGate"
			if !fills || file.Name.Name != "config" {
				p.selectors[n.Sel.Name] = true
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
				texts = append(texts, text)
			}
		}
		return true
	})
	if asks {
		for _, text := range texts {
			p.gates[text] = true
		}
	}
}

// goName is the name that the field of a path has in Go.
func goName(t *testing.T, path string) string {
	t.Helper()
	at, name := reflect.TypeFor[KubeletConfiguration](), ""
	for part := range strings.SplitSeq(strings.ReplaceAll(path, "[]", ""), ".") {
		for at.Kind() == reflect.Pointer || at.Kind() == reflect.Slice {
			at = at.Elem()
		}
		found := false
		for _, f := range reflect.VisibleFields(at) {
			if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == part {
				at, name, found = f.Type, f.Name, true
				break
			}
		}
		if !found {
			t.Fatalf("no field %s", path)
		}
	}
	return name
}
