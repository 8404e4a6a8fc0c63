package main

import (
	"cmp"
	"debug/buildinfo"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// component is third-party software that is linked into programs.
type component struct {
	name, version string
	kind          componentKind
	changed       bool     // built from a modified copy
	users         []string // programs
	licence       string   // an SPDX expression, or noAssertion
	texts         []text   // of licences and notices
}

type componentKind string

const (
	goModule componentKind = "golang" // a Go module or the standard library
	cLibrary componentKind = "generic"
)

// standardLibrary is the name of Go's standard library in package URLs.
const standardLibrary = "stdlib"

// url returns the component's package URL (purl), its identifier in vulnerability databases.
func (c component) url() string {
	return fmt.Sprintf("pkg:%s/%s@%s", c.kind, c.name, strings.ReplaceAll(c.version, "+", "%2B"))
}

// componentsOf returns the components linked into the programs, sorted by name and version.
// versions are those of C libraries.
func componentsOf(programs []program, versions map[string]string) ([]component, error) {
	found := map[string]component{}
	add := func(user program, c component) {
		key := c.name + "@" + c.version
		if have, ok := found[key]; ok {
			c.users, c.changed = have.users, c.changed || have.changed
		}
		c.users = append(c.users, user.name)
		found[key] = c
	}
	for _, p := range programs {
		if p.info != nil {
			for _, c := range modulesOf(p.info) {
				add(p, c)
			}
		}
		for _, library := range cLibraries {
			if !p.linkedWith(library.name) {
				continue
			}
			version := versions[library.name]
			if version == "" {
				return nil, fmt.Errorf("%s is linked with %s, and the bundle does not say of which version", p.name, library.name)
			}
			add(p, component{name: library.name, version: version, kind: cLibrary, licence: library.licence})
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b component) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name), cmp.Compare(a.version, b.version))
	}), nil
}

// modulesOf returns the third-party modules in a program, and the standard library.
func modulesOf(info *buildinfo.BuildInfo) []component {
	all := []component{{name: standardLibrary, version: strings.TrimPrefix(info.GoVersion, "go"), kind: goModule}}
	// Deps does not include the main module.
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if ours(m.Path) {
			continue
		}
		c := component{name: m.Path, version: m.Version, kind: goModule}
		switch r := m.Replace; {
		case r == nil:
		case modfile.IsDirectoryPath(r.Path):
			c.changed = true
		default: // a released third-party module
			c.name, c.version = r.Path, r.Version
		}
		all = append(all, c)
	}
	return all
}

// ours reports whether a module belongs to this repository.
func ours(path string) bool { return path == "berth" || strings.HasPrefix(path, "berth/") }
