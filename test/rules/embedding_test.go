package rules

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"strings"
)

// What one type may hold, with what it embeds of its own package.
const (
	maxMethods = 30
	maxFields  = 20
)

// declared is a type of a package: its own methods and fields, and the types of its package that
// it embeds.
type declared struct {
	at         string
	methods    []string
	fields     int
	embeds     []string
	isAbstract bool // an interface
}

// declaredTypes returns the types of the product's packages, by directory and name.
func declaredTypes(t tree) map[string]*declared {
	all := map[string]*declared{}
	typeOf := func(name string) *declared {
		if all[name] == nil {
			all[name] = &declared{}
		}
		return all[name]
	}
	functions(t, func(f source, fn *ast.FuncDecl) {
		if fn.Recv != nil {
			d := typeOf(f.dir() + "." + receiverName(fn))
			d.methods = append(d.methods, fn.Name.Name)
		}
	})
	eachType(t, func(f source, spec *ast.TypeSpec) {
		d := typeOf(f.dir() + "." + spec.Name.Name)
		d.at = f.at(spec.Pos())
		switch x := spec.Type.(type) {
		case *ast.InterfaceType:
			d.isAbstract = true
		case *ast.StructType:
			for _, field := range x.Fields.List {
				d.fields += len(field.Names)
				if name := embeddedName(field); name != "" {
					d.embeds = append(d.embeds, f.dir()+"."+name)
				}
			}
		}
	})
	return all
}

// embeddedName returns the name of an embedded type of the same package, else "".
func embeddedName(field *ast.Field) string {
	if len(field.Names) > 0 {
		return ""
	}
	e := field.Type
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

// effective returns the methods and the number of fields of a type, with those that it gets by
// embedding.
func effective(all map[string]*declared, name string) (methods map[string]bool, fields int) {
	methods = map[string]bool{}
	d := all[name]
	if d == nil {
		return methods, 0
	}
	for _, m := range d.methods {
		methods[m] = true
	}
	fields = d.fields
	for _, e := range d.embeds {
		more, n := effective(all, e)
		maps.Copy(methods, more)
		fields += n
	}
	return methods, fields
}

// checkEmbedding finds types that embed a type of their own package with methods. To embed an
// interface is to name it.
func checkEmbedding(t tree) []string {
	all := declaredTypes(t)
	e := excusesOf("embedding")
	var found []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, embedded := range all[name].embeds {
			methods, _ := effective(all, embedded)
			if len(methods) == 0 || all[embedded].isAbstract || e.allows(name) {
				continue
			}
			_, short, _ := strings.Cut(embedded[strings.LastIndex(embedded, "/")+1:], ".")
			found = append(found, all[name].at+fmt.Sprintf("%s embeds %s, which has %d methods", name, short, len(methods)))
		}
	}
	return append(found, e.idle(t)...)
}

// checkTypes counts the methods and fields of each type, with what it gets by embedding.
func checkTypes(t tree) []string {
	all := declaredTypes(t)
	e := excusesOf("types")
	var found []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		methods, fields := effective(all, name)
		if len(methods) > maxMethods && !e.allows(name) {
			found = append(found, all[name].at+fmt.Sprintf("%s has %d methods", name, len(methods)))
		}
		if fields > maxFields && !e.allows(name) {
			found = append(found, all[name].at+fmt.Sprintf("%s has %d fields", name, fields))
		}
	}
	return append(found, e.idle(t)...)
}
