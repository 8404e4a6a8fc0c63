package config

import (
	"go/ast"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"berth/internal/config/coveragetest"
)

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
			err := filepath.WalkDir(filepath.Join(coveragetest.Repository(t), folder), func(path string, _ fs.DirEntry, err error) error {
				if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
					readOnce.add(coveragetest.ParseFile(t, path), path)
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
