package rules

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/modfile"
)

// tree is the text of the repository.
type tree struct {
	files []source
	fset  *token.FileSet
}

// source is one text file. path is relative to the root, with slashes.
type source struct {
	path   string
	text   []byte
	nested bool          // part of a nested module
	ast    *ast.File     // of a Go file
	mod    *modfile.File // of a go.mod
	fset   *token.FileSet
}

func (f source) dir() string     { return path.Dir(f.path) }
func (f source) isTest() bool    { return strings.HasSuffix(f.path, "_test.go") }
func (f source) lines() []string { return strings.Split(string(f.text), "\n") }

// at is the position of p as the beginning of a finding.
func (f source) at(p token.Pos) string {
	return fmt.Sprintf("%s:%d: ", f.path, f.fset.Position(p).Line)
}

func (f source) imports(p string) bool {
	return slices.ContainsFunc(f.ast.Imports, func(imp *ast.ImportSpec) bool { return importPath(imp) == p })
}

// goFiles are the Go files of the root module, whatever their build constraints.
func (t tree) goFiles() []source {
	return slices.DeleteFunc(slices.Clone(t.files), func(f source) bool { return f.ast == nil || f.nested })
}

// allGoFiles are the Go files of all modules.
func (t tree) allGoFiles() []source {
	return slices.DeleteFunc(slices.Clone(t.files), func(f source) bool { return f.ast == nil })
}

// text is the lines of the file at p; none if there is no such file.
func (t tree) text(p string) []string {
	for _, f := range t.files {
		if f.path == p {
			return f.lines()
		}
	}
	return nil
}

// newTree parses files, given by their path.
func newTree(files map[string][]byte) (tree, error) {
	t := tree{fset: token.NewFileSet()}
	var nested []string
	for p := range files {
		if path.Base(p) == "go.mod" && p != "go.mod" {
			nested = append(nested, path.Dir(p))
		}
	}
	for p, text := range files {
		f := source{path: p, text: text, fset: t.fset}
		f.nested = slices.ContainsFunc(nested, func(dir string) bool { return within(p, dir) })
		var err error
		switch {
		case slices.Contains(strings.Split(p, "/"), "testdata"): // whatever it looks like, the go command does not read it
		case strings.HasSuffix(p, ".go"):
			f.ast, err = parser.ParseFile(t.fset, p, text, parser.ParseComments)
		case path.Base(p) == "go.mod":
			f.mod, err = modfile.Parse(p, text, nil)
		}
		if err != nil {
			return tree{}, err
		}
		t.files = append(t.files, f)
	}
	slices.SortFunc(t.files, func(a, b source) int { return strings.Compare(a.path, b.path) })
	return t, nil
}

// readTree reads the text of the repository at root: without what is built, checksums and binary
// files.
func readTree(root string) (tree, error) {
	files := map[string][]byte{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Name() == ".git": // a file in a linked work tree
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir() && slices.Contains([]string{"bin", "dist"}, d.Name()):
			return fs.SkipDir
		case !d.Type().IsRegular() || d.Name() == "go.sum":
			return nil
		}
		text, err := os.ReadFile(p)
		if err == nil && !bytes.Contains(text, []byte{0}) {
			if p, err = filepath.Rel(root, p); err == nil {
				files[filepath.ToSlash(p)] = text
			}
		}
		return err
	})
	if err != nil {
		return tree{}, fmt.Errorf("read the repository: %w", err)
	}
	return newTree(files)
}

func findSelectors(t tree, judge func(source, *ast.SelectorExpr) string) []string {
	var found []string
	for _, f := range t.goFiles() {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if what := judge(f, sel); what != "" {
					found = append(found, f.at(sel.Pos())+what)
				}
			}
			return true
		})
	}
	return found
}

func isSelector(sel *ast.SelectorExpr, pkg, name string) bool {
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == pkg && sel.Sel.Name == name
}

func importPath(imp *ast.ImportSpec) string {
	p, err := strconv.Unquote(imp.Path.Value)
	if err != nil {
		panic(err) // the parser has checked it
	}
	return p
}

// within reports whether p is dir or below it.
func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
