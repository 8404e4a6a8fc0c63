package rules

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// The most that is read in one sitting.
const (
	maxFileLines         = 400
	maxFunctionLines     = 80
	maxParameters        = 5
	maxInterfaceMethods  = 4
	maxCommentColumns    = 100
	commentColumnsOfATab = 4
)

// isProduct reports whether the file is part of what is run on a node: not a test, what supports
// tests, or what measures.
func (f source) isProduct() bool {
	return !f.isTest() && testSupport[f.dir()] == "" && !within(f.dir(), "test") && !within(f.dir(), "bench")
}

// excuses are the exceptions of one rule that are used up.
type excuses struct {
	of   map[string]string
	used map[string]bool
}

func excusesOf(name string) excuses { return excuses{of: exceptions[name], used: map[string]bool{}} }

// allows reports whether the thing may break the rule.
func (e excuses) allows(thing string) bool {
	e.used[thing] = true
	return e.of[thing] != ""
}

// idle returns the exceptions of things that the repository has and that do not break the rule.
func (e excuses) idle(t tree) []string {
	if t.text("test/rules/rules_test.go") == nil {
		return nil // an example: the exceptions are not those of its files
	}
	var found []string
	for _, thing := range slices.Sorted(maps.Keys(e.of)) {
		if !e.used[thing] {
			found = append(found, fmt.Sprintf("test/rules/rules_test.go: the exception of %s is not needed", thing))
		}
	}
	return found
}

// functionName names a function or method within the repository: internal/pod.Manager.Get.
func functionName(f source, fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return f.dir() + "." + fn.Name.Name
	}
	return f.dir() + "." + receiverName(fn) + "." + fn.Name.Name
}

func receiverName(fn *ast.FuncDecl) string {
	e := fn.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// functions calls visit for each function and method of the product.
func functions(t tree, visit func(f source, fn *ast.FuncDecl)) {
	for _, f := range t.allGoFiles() {
		if !f.isProduct() {
			continue
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				visit(f, fn)
			}
		}
	}
}

func checkFileLength(t tree) []string {
	var found []string
	e := excusesOf("fileLength")
	for _, f := range t.allGoFiles() {
		if n := len(f.lines()) - 1; f.isProduct() && n > maxFileLines && !e.allows(f.path) {
			found = append(found, fmt.Sprintf("%s:1: %d lines", f.path, n))
		}
	}
	return append(found, e.idle(t)...)
}

func checkFunctionLength(t tree) []string {
	var found []string
	e := excusesOf("functionLength")
	functions(t, func(f source, fn *ast.FuncDecl) {
		n := f.fset.Position(fn.End()).Line - f.fset.Position(fn.Pos()).Line + 1
		if n > maxFunctionLines && !e.allows(functionName(f, fn)) {
			found = append(found, f.at(fn.Pos())+fmt.Sprintf("%s has %d lines", functionName(f, fn), n))
		}
	})
	return append(found, e.idle(t)...)
}

func checkParameters(t tree) []string {
	var found []string
	e := excusesOf("parameters")
	functions(t, func(f source, fn *ast.FuncDecl) {
		if n := fn.Type.Params.NumFields(); n > maxParameters && !e.allows(functionName(f, fn)) {
			found = append(found, f.at(fn.Pos())+fmt.Sprintf("%s has %d parameters", functionName(f, fn), n))
		}
	})
	return append(found, e.idle(t)...)
}

func checkBooleans(t tree) []string {
	var found []string
	e := excusesOf("booleans")
	functions(t, func(f source, fn *ast.FuncDecl) {
		for _, p := range fn.Type.Params.List {
			if id, ok := p.Type.(*ast.Ident); ok && id.Name == "bool" && !e.allows(functionName(f, fn)) {
				found = append(found, f.at(fn.Pos())+functionName(f, fn)+" has a boolean parameter")
				break
			}
		}
	})
	return append(found, e.idle(t)...)
}

// checkInterfaces counts what an interface declares itself: one may be put together from small
// ones.
func checkInterfaces(t tree) []string {
	var found []string
	e := excusesOf("interfaces")
	eachType(t, func(f source, spec *ast.TypeSpec) {
		it, ok := spec.Type.(*ast.InterfaceType)
		if !ok {
			return
		}
		n := 0
		for _, m := range it.Methods.List {
			n += len(m.Names)
		}
		if name := f.dir() + "." + spec.Name.Name; n > maxInterfaceMethods && !e.allows(name) {
			found = append(found, f.at(spec.Pos())+fmt.Sprintf("%s declares %d methods", name, n))
		}
	})
	return append(found, e.idle(t)...)
}

func checkClocks(t tree) []string {
	var found []string
	e := excusesOf("clocks")
	eachType(t, func(f source, spec *ast.TypeSpec) {
		s, ok := spec.Type.(*ast.StructType)
		if !ok {
			return
		}
		for _, field := range s.Fields.List {
			fn, ok := field.Type.(*ast.FuncType)
			if !ok || fn.Params.NumFields() > 0 || fn.Results.NumFields() != 1 {
				continue
			}
			sel, ok := fn.Results.List[0].Type.(*ast.SelectorExpr)
			if name := f.dir() + "." + spec.Name.Name; ok && isSelector(sel, "time", "Time") && !e.allows(name) {
				found = append(found, f.at(field.Pos())+name+" has a clock of its own")
			}
		}
	})
	return append(found, e.idle(t)...)
}

// eachType calls visit for each type that the product declares.
func eachType(t tree, visit func(f source, spec *ast.TypeSpec)) {
	for _, f := range t.allGoFiles() {
		if !f.isProduct() {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				visit(f, spec)
			}
			return true
		})
	}
}

// checkColumns measures comments that stand on lines of their own.
func checkColumns(t tree) []string {
	var found []string
	for _, f := range t.allGoFiles() {
		lines := f.lines()
		for _, group := range f.ast.Comments {
			for _, c := range group.List {
				line := f.fset.Position(c.Pos()).Line
				text := strings.ReplaceAll(lines[line-1], "\t", strings.Repeat(" ", commentColumnsOfATab))
				n := utf8.RuneCountInString(text)
				alone := strings.HasPrefix(strings.TrimSpace(text), "//")
				preformatted := strings.HasPrefix(c.Text, "//\t") || strings.HasPrefix(c.Text, "//  ") || strings.HasPrefix(c.Text, "//go:")
				// A single word, such as an address, cannot be broken.
				if alone && n > maxCommentColumns && !preformatted && len(strings.Fields(text)) > 2 {
					found = append(found, f.at(c.Pos())+fmt.Sprintf("a comment of %d columns", n))
				}
			}
		}
	}
	return found
}

func checkWriters(t tree) []string {
	return findSelectors(t, func(f source, sel *ast.SelectorExpr) string {
		owners, ok := writers[sel.Sel.Name]
		if !ok || !f.isProduct() || within(f.dir(), "internal/cluster/kube") || slices.Contains(owners, f.dir()) {
			return ""
		}
		return fmt.Sprintf("%s: only %s may", sel.Sel.Name, strings.Join(owners, " and "))
	})
}
