package agent_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var updateLibrary = flag.Bool("update-library", false, "write testdata/library/api.txt anew: what users of the library rely on has changed")

// What docs/library.md promises to keep is as it was: a change here is one for other modules, and
// belongs into CHANGELOG.md.
func TestLibraryStays(t *testing.T) {
	doc, err := os.ReadFile("../docs/library.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(doc), "\n## Stable names\n")
	if !ok {
		t.Fatal("docs/library.md has no section \"Stable names\"")
	}
	declared := map[string]string{}
	declarations(t, ".", "agent.", declared)
	declarations(t, "agenttest", "agenttest.", declared)

	var got strings.Builder
	for _, row := range regexp.MustCompile(`(?m)^\|(.*?)\|(.*)\|$`).FindAllStringSubmatch(table, -1) {
		for _, name := range quoted.FindAllStringSubmatch(row[1], -1) {
			if name[1] != "agent.Config" {
				fmt.Fprintf(&got, "%s: %s\n", name[1], lookUp(t, declared, name[1]))
				continue
			}
			for _, field := range quoted.FindAllStringSubmatch(row[2], -1) {
				fmt.Fprintf(&got, "%s.%s: %s\n", name[1], field[1], lookUp(t, declared, name[1]+"."+field[1]))
			}
		}
	}
	const golden = "testdata/library/api.txt"
	if *updateLibrary {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("what other modules rely on has changed (-was +is); if it must: a line in CHANGELOG.md, and go test ./agent -run TestLibraryStays -update-library\n%s", diff)
	}
}

var quoted = regexp.MustCompile("`([^`]+)`")

func lookUp(t *testing.T, declared map[string]string, name string) string {
	t.Helper()
	text, ok := declared[name]
	if !ok {
		t.Errorf("docs/library.md names %s, which does not exist", name)
	}
	return text
}

// declarations adds how each exported name of the folder's package is declared, in one line, under
// prefix and name; methods and fields under those of their types.
func declarations(t *testing.T, dir, prefix string, out map[string]string) {
	t.Helper()
	files := token.NewFileSet()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	text := func(n any) string {
		var b strings.Builder
		if err := format.Node(&b, files, n); err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(b.String()), " ")
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				name := prefix
				if d.Recv != nil {
					name += strings.TrimPrefix(text(d.Recv.List[0].Type), "*") + "."
				}
				out[name+d.Name.Name] = text(d.Type)
			case *ast.GenDecl:
				specs(d, prefix, text, out)
			}
		}
	}
}

func specs(d *ast.GenDecl, prefix string, text func(any) string, out map[string]string) {
	for _, s := range d.Specs {
		switch s := s.(type) {
		case *ast.TypeSpec:
			out[prefix+s.Name.Name] = text(s.Type)
			fields, ok := s.Type.(*ast.StructType)
			if !ok {
				continue
			}
			for _, f := range fields.Fields.List {
				for _, name := range f.Names {
					out[prefix+s.Name.Name+"."+name.Name] = text(f.Type)
				}
			}
		case *ast.ValueSpec:
			for _, name := range s.Names {
				out[prefix+name.Name] = d.Tok.String()
			}
		}
	}
}
