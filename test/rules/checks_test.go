package rules

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// bannedLinks returns the packages of linked that the binary must not contain, each with the
// reason.
func bannedLinks(linked []string) []string {
	var found []string
	for _, p := range linked {
		if slices.ContainsFunc(slices.Collect(maps.Keys(linkExceptions)), func(e string) bool { return within(p, e) }) {
			continue
		}
		for banned, reason := range linkBans {
			if within(p, banned) {
				found = append(found, p+": "+reason)
			}
		}
	}
	slices.Sort(found)
	return found
}

func checkRanks(t tree) []string {
	var found []string
	for _, f := range t.goFiles() {
		if f.isTest() || within(f.dir(), "test") || within(f.dir(), "bench") {
			continue
		}
		parent, supports := testSupport[f.dir()]
		own, ranked := ranks[f.dir()]
		switch {
		case supports:
			own = ranks[parent] + 1 // its parent and everything below it
		case !ranked:
			found = append(found, f.at(f.ast.Package)+fmt.Sprintf("package %s has no rank", f.dir()))
			continue
		}
		for _, imp := range f.ast.Imports {
			to, internal := strings.CutPrefix(importPath(imp), "berth/")
			if !internal {
				continue
			}
			toParent, toSupports := testSupport[to]
			toRank, ok := ranks[to]
			switch {
			case toSupports && !supports:
				found = append(found, f.at(imp.Pos())+fmt.Sprintf("%s imports %s, which is for tests only", f.dir(), to))
			case toSupports:
				if ranks[toParent] >= own {
					found = append(found, f.at(imp.Pos())+fmt.Sprintf("%s, beside %s of rank %d, imports %s, beside %s of rank %d", f.dir(), parent, own-1, to, toParent, ranks[toParent]))
				}
			case !ok:
				found = append(found, f.at(imp.Pos())+fmt.Sprintf("%s imports %s, which has no rank", f.dir(), to))
			case toRank >= own && supports:
				found = append(found, f.at(imp.Pos())+fmt.Sprintf("%s, beside %s of rank %d, imports %s of rank %d", f.dir(), parent, own-1, to, toRank))
			case toRank >= own:
				found = append(found, f.at(imp.Pos())+fmt.Sprintf("%s of rank %d imports %s of rank %d", f.dir(), own, to, toRank))
			}
		}
	}
	return found
}

// checkGroups finds the imports by which groups of packages (the folders of internal/) form a
// cycle.
func checkGroups(t tree) []string {
	type arrow struct{ from, to string }
	where, arrows := map[arrow][]string{}, map[string]map[string]bool{}
	for _, f := range t.goFiles() {
		from := groupOf(f.dir())
		if _, supports := testSupport[f.dir()]; supports || f.isTest() || from == "" {
			continue
		}
		for _, imp := range f.ast.Imports {
			to := groupOf(strings.TrimPrefix(importPath(imp), "berth/"))
			if to == "" || to == from || !strings.HasPrefix(importPath(imp), "berth/") {
				continue
			}
			if arrows[from] == nil {
				arrows[from] = map[string]bool{}
			}
			arrows[from][to] = true
			where[arrow{from, to}] = append(where[arrow{from, to}], f.at(imp.Pos())+fmt.Sprintf("group %s imports group %s, which depends on %s", from, to, from))
		}
	}
	var reaches func(from, to string, seen map[string]bool) bool
	reaches = func(from, to string, seen map[string]bool) bool {
		if from == to || seen[from] {
			return from == to
		}
		seen[from] = true
		return slices.ContainsFunc(slices.Collect(maps.Keys(arrows[from])), func(next string) bool { return reaches(next, to, seen) })
	}
	var found []string
	for a, lines := range where {
		if reaches(a.to, a.from, map[string]bool{}) {
			found = append(found, lines...)
		}
	}
	slices.Sort(found)
	return found
}

// groupOf returns the folder of internal/ that a package is in, empty if it is in none.
func groupOf(dir string) string {
	below, ok := strings.CutPrefix(dir, "internal/")
	if !ok {
		return ""
	}
	group, _, _ := strings.Cut(below, "/")
	return group
}

func checkBans(t tree) []string {
	var found []string
	for _, f := range t.goFiles() {
		for _, imp := range f.ast.Imports {
			for b, reason := range bans {
				if (b.from == "" || within(f.dir(), b.from) && !f.isTest()) && b.matches(importPath(imp)) {
					found = append(found, f.at(imp.Pos())+fmt.Sprintf("import of %s: %s", importPath(imp), reason))
				}
			}
		}
	}
	slices.Sort(found)
	return found
}

// matches reports whether b refuses the import path p.
func (b ban) matches(p string) bool {
	pattern := regexp.QuoteMeta(b.to)
	if below, ok := strings.CutSuffix(pattern, `/\.\.\.`); ok {
		pattern = below + `(/.*)?`
	}
	return regexp.MustCompile(`^` + strings.ReplaceAll(pattern, `\.\.\.`, `.*`) + `$`).MatchString(p)
}

func checkCRIClients(t tree) []string {
	return findSelectors(t, func(f source, sel *ast.SelectorExpr) string {
		// What is measured against the runtime makes its calls itself.
		if f.isTest() || within(f.dir(), "internal/runtime/cri") || within(f.dir(), "bench") {
			return ""
		}
		if n := sel.Sel.Name; n == "NewRuntimeServiceClient" || n == "NewImageServiceClient" {
			return n + ": only internal/runtime/cri speaks CRI"
		}
		return ""
	})
}

func checkCheckpoints(t tree) []string {
	return findSelectors(t, func(f source, sel *ast.SelectorExpr) string {
		switch {
		case f.isTest() || testSupport[f.dir()] != "" || renamers[f.path] != "" || f.dir() == "internal/checkpoint",
			!within(f.dir(), "agent") && !within(f.dir(), "internal"):
			return ""
		case isSelector(sel, "os", "Rename"), isSelector(sel, "os", "CreateTemp"):
			return "os." + sel.Sel.Name + ": only internal/checkpoint replaces files"
		case isSelector(sel, "checkpoint", "Inject"):
			return "checkpoint.Inject: for checkpointtest alone"
		}
		return ""
	})
}

func checkCgroupfs(t tree) []string {
	var found []string
	for _, f := range t.goFiles() {
		if _, ok := cgroupfsReaders[f.dir()]; ok || f.isTest() || within(f.dir(), "test") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && strings.Contains(lit.Value, "/sys/fs/"+"cgroup") {
				found = append(found, f.at(lit.Pos())+"names the cgroup file system")
			}
			return true
		})
	}
	return found
}

// pathFunctions are functions that follow the links in a path.
var pathFunctions = map[string][]string{
	"os": {
		"Open", "OpenFile", "OpenInRoot", "OpenRoot", "Create", "CreateTemp", "ReadFile", "WriteFile", "Mkdir", "MkdirAll", "MkdirTemp", "Remove", "RemoveAll",
		"Rename", "Symlink", "Link", "Readlink", "Stat", "Lstat", "ReadDir", "Chmod", "Chown", "Lchown", "Chtimes", "Truncate", "DirFS", "CopyFS",
	},
	"filepath": {"Walk", "WalkDir", "EvalSymlinks", "Glob"},
	"unix": {
		"Open", "Openat", "Creat", "Mkdir", "Mknod", "Mkfifo", "Unlink", "Rmdir", "Rename", "Symlink", "Link", "Readlink", "Stat", "Lstat", "Statfs", "Access",
		"Chmod", "Chown", "Lchown", "Truncate", "Utimes", "Mount", "Unmount", "Setxattr", "Lsetxattr",
	},
}

func checkPodFolders(t tree) []string {
	var found []string
	for _, f := range t.goFiles() {
		if _, ok := pathUsers[f.path]; ok || f.isTest() || !slices.Contains(podFolderPackages, f.dir()) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			for pkg, names := range pathFunctions {
				for _, name := range names {
					if isSelector(sel, pkg, name) && !takesDescriptor(call) {
						found = append(found, f.at(call.Pos())+pkg+"."+name+" follows links")
					}
				}
			}
			return true
		})
	}
	return found
}

// takesDescriptor reports whether a call is told by a descriptor where to look: safepath.Self(fd),
// or unix.Openat(fd, …, unix.O_NOFOLLOW|…).
func takesDescriptor(call *ast.CallExpr) bool {
	found := false
	for _, arg := range call.Args {
		ast.Inspect(arg, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				found = found || isSelector(sel, "safepath", "Self") || isSelector(sel, "unix", "O_NOFOLLOW") || isSelector(sel, "unix", "O_EXCL")
			}
			return true
		})
	}
	return found
}

func checkDocs(t tree) []string {
	docs, clauses := map[string][]source{}, map[string]source{}
	for _, f := range t.allGoFiles() {
		// The packages in bundle/containerd are one file each, which the build adds to a package of
		// containerd.
		if f.isTest() || within(f.dir(), "bundle/containerd") {
			continue
		}
		clauses[f.dir()] = f
		if f.ast.Doc != nil && f.ast.Doc.Text() != "" { // Text is empty for a build constraint
			docs[f.dir()] = append(docs[f.dir()], f)
		}
	}
	var found []string
	for dir, f := range clauses {
		switch len(docs[dir]) {
		case 0:
			found = append(found, f.at(f.ast.Package)+fmt.Sprintf("package %s has no doc", dir))
		case 1:
			f := docs[dir][0]
			for _, lack := range lacksOfDoc(f.ast.Name.Name, f.ast.Doc.Text()) {
				found = append(found, f.at(f.ast.Doc.Pos())+lack)
			}
		default:
			for _, f := range docs[dir] {
				found = append(found, f.at(f.ast.Doc.Pos())+fmt.Sprintf("package %s has %d docs", dir, len(docs[dir])))
			}
		}
	}
	slices.Sort(found)
	return found
}

// lacksOfDoc returns what a package doc lacks.
func lacksOfDoc(name, doc string) []string {
	if name == "main" {
		return nil
	}
	var lacks []string
	lines := strings.Split(doc, "\n")
	if rest, ok := strings.CutPrefix(lines[0], "Package "+name+" "); !ok || rest == "" {
		lacks = append(lacks, fmt.Sprintf("the doc does not begin with %q and what it is", "Package "+name))
	} else if first, _, _ := strings.Cut(doc, "\n\n"); !strings.ContainsAny(first, ".:") {
		lacks = append(lacks, "the first paragraph of the doc is not a sentence")
	}
	last := -1
	for _, word := range []string{"Owns: ", "Reads: ", "Never: "} {
		var at []int
		for i, line := range lines {
			if strings.HasPrefix(line, word) {
				at = append(at, i)
			}
		}
		switch {
		case len(at) != 1:
			lacks = append(lacks, fmt.Sprintf("the doc has %d lines `%s…`, and needs one", len(at), word))
		case at[0] < last:
			lacks = append(lacks, fmt.Sprintf("the line `%s…` is out of order: Owns, Reads, Never", word))
		default:
			last = at[0]
		}
	}
	return lacks
}

func checkNames(t tree) []string {
	empty := []string{"util", "utils", "common", "helper", "helpers", "types", "base", "misc", "shared", "core", "pkg"}
	var found []string
	for _, f := range t.allGoFiles() {
		name := strings.TrimSuffix(f.ast.Name.Name, "_test")
		for _, word := range append(strings.Split(f.dir(), "/"), name) {
			if slices.Contains(empty, word) {
				found = append(found, f.at(f.ast.Package)+fmt.Sprintf("package %s in %s is named %q", name, f.dir(), word))
				break
			}
		}
	}
	return found
}

func checkSleep(t tree) []string {
	return findSelectors(t, func(f source, sel *ast.SelectorExpr) string {
		// What is outside of the process, in e2e tests, can only be looked at again after a while;
		// what is measured takes its time.
		isTest := f.isTest() || testSupport[f.dir()] != ""
		if !isSelector(sel, "time", "Sleep") || within(f.dir(), "test/e2e") || within(f.dir(), "bench") || isTest && f.imports("testing/synctest") {
			return ""
		}
		if isTest {
			return "time.Sleep in a test outside of a bubble"
		}
		return "time.Sleep"
	})
}

func checkSkip(t tree) []string {
	return findSelectors(t, func(f source, sel *ast.SelectorExpr) string {
		x, ok := sel.X.(*ast.Ident)
		if ok && f.isTest() && slices.Contains([]string{"t", "tb", "b"}, x.Name) && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) {
			return x.Name + "." + sel.Sel.Name
		}
		return ""
	})
}

func checkE2ETag(t tree) []string {
	var found []string
	for _, f := range t.goFiles() {
		if within(f.dir(), "test/e2e") && f.isTest() && !bytes.HasPrefix(f.text, []byte("//go:build e2e")) {
			found = append(found, f.path+":1: has no build constraint e2e")
		}
	}
	return found
}

func checkExit(t tree) []string {
	return findSelectors(t, func(f source, sel *ast.SelectorExpr) string {
		if f.isTest() || within(f.dir(), "cmd") || within(f.dir(), "test") || f.path == "bench/main.go" {
			return ""
		}
		if isSelector(sel, "os", "Exit") || isSelector(sel, "log", "Fatal") || isSelector(sel, "log", "Fatalf") || isSelector(sel, "log", "Fatalln") {
			return "ends the process"
		}
		return ""
	})
}

func checkRecover(t tree) []string {
	var found []string
	excused := excusesOf("recover")
	for _, f := range t.allGoFiles() {
		if f.isTest() || testSupport[f.dir()] != "" {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if id, ok := call.Fun.(*ast.Ident); ok && id.Name == "recover" && !excused.allows(f.path) {
					found = append(found, f.at(call.Pos())+"recovers from a panic")
				}
			}
			return true
		})
	}
	return append(found, excused.idle(t)...)
}

func checkChannels(t tree) []string {
	found := findSelectors(t, func(_ source, sel *ast.SelectorExpr) string {
		if sel.Sel.Name == "NeverStop" {
			return "NeverStop is a package-level channel"
		}
		return ""
	})
	for _, f := range t.allGoFiles() {
		for _, decl := range f.ast.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != token.VAR {
				continue
			}
			for _, spec := range gen.Specs {
				v := spec.(*ast.ValueSpec)
				if isChannelType(v.Type) || slices.ContainsFunc(v.Values, makesChannel) {
					found = append(found, f.at(v.Pos())+fmt.Sprintf("package-level channel %s", v.Names[0].Name))
				}
			}
		}
	}
	return found
}

func isChannelType(e ast.Expr) bool {
	_, ok := e.(*ast.ChanType)
	return ok
}

// makesChannel reports whether e is make(chan …), or a function literal that is called at once and
// returns a channel.
func makesChannel(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		return fun.Name == "make" && len(call.Args) > 0 && isChannelType(call.Args[0])
	case *ast.FuncLit:
		return fun.Type.Results != nil && slices.ContainsFunc(fun.Type.Results.List, func(r *ast.Field) bool { return isChannelType(r.Type) })
	}
	return false
}

var todo = regexp.MustCompile(`\b(` + "TO" + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b`)

func checkTodo(t tree) []string {
	var found []string
	for _, f := range t.files {
		for i, line := range f.lines() {
			if todo.MatchString(line) && !strings.Contains(line, "because") {
				found = append(found, fmt.Sprintf("%s:%d: %s", f.path, i+1, strings.TrimSpace(line)))
			}
		}
	}
	return found
}

func checkWorkspace(t tree) []string {
	var found []string
	for _, f := range t.files {
		if path.Base(f.path) == "go.work" {
			found = append(found, f.path+":1: a workspace")
		}
		if f.path == "go.mod" {
			for _, r := range f.mod.Replace {
				found = append(found, fmt.Sprintf("%s:%d: replace of %s", f.path, r.Syntax.Start.Line, r.Old.Path))
			}
		}
	}
	return found
}

func checkDependencies(t tree) []string {
	const doc = "docs/dependencies.md"
	documented := map[string]int{} // by module path: line
	for i, line := range t.text(doc) {
		if m := dependencyRow.FindStringSubmatch(line); m != nil {
			documented[m[1]] = i + 1
		}
	}
	var found []string
	direct := map[string]bool{}
	for _, f := range t.files {
		if f.mod == nil {
			continue
		}
		for _, req := range f.mod.Require {
			p := req.Mod.Path
			isTool := slices.ContainsFunc(f.mod.Tool, func(tool *modfile.Tool) bool { return within(tool.Path, p) })
			if req.Indirect && !isTool || within(p, "berth") { // a module of this repository
				continue
			}
			direct[p] = true
			if documented[p] == 0 {
				found = append(found, fmt.Sprintf("%s:%d: %s has no row in %s", f.path, req.Syntax.Start.Line, p, doc))
			}
		}
	}
	for p, line := range documented {
		if !direct[p] {
			found = append(found, fmt.Sprintf("%s:%d: %s is not a direct dependency of any module here", doc, line, p))
		}
	}
	slices.Sort(found)
	return found
}

// dependencyRow is a row of a table whose first cell is a module path.
var dependencyRow = regexp.MustCompile("^\\| `([a-z0-9.-]+\\.[a-z]+/[^`]+)` \\|")

func checkArchitecture(t tree) []string {
	const doc = "ARCHITECTURE.md"
	text := strings.Join(t.text(doc), "\n")
	dirs, folders := map[string]bool{}, map[string]bool{}
	for _, f := range t.goFiles() {
		if f.dir() != "." {
			dirs[f.dir()] = true
		}
		for dir := f.dir(); dir != "."; dir = path.Dir(dir) {
			folders[dir] = true
		}
	}
	var found []string
	for dir := range dirs {
		word := regexp.QuoteMeta(dir)
		if !strings.Contains(dir, "/") {
			word += "/" // agent is also a word of the language
		}
		if !regexp.MustCompile(`(^|[^\w/])` + word + `($|\W)`).MatchString(text) {
			found = append(found, fmt.Sprintf("%s: does not name %s", doc, dir))
		}
	}
	for i, line := range t.text(doc) {
		for _, m := range namedPackage.FindAllStringSubmatch(line, -1) {
			if dir, file := path.Clean(m[2]), m[3] != ""; !file && !folders[dir] {
				found = append(found, fmt.Sprintf("%s:%d: there is no package or folder %s", doc, i+1, dir))
			}
		}
	}
	slices.Sort(found)
	return found
}

func checkWords(t tree) []string {
	const doc = "docs/words.md"
	declared := map[string]bool{}
	for _, f := range t.goFiles() {
		pkg := path.Base(f.dir())
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				declared[pkg+"."+d.Name.Name] = true
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok {
						declared[pkg+"."+s.Name.Name] = true
					}
				}
			}
		}
	}
	var found []string
	for i, line := range t.text(doc) {
		for _, m := range namedSymbol.FindAllStringSubmatch(line, -1) {
			if !declared[m[1]] {
				found = append(found, fmt.Sprintf("%s:%d: there is no %s", doc, i+1, m[1]))
			}
		}
	}
	return found
}

// namedSymbol is an exported type or function in a text.
var namedSymbol = regexp.MustCompile("`([a-z]+\\.[A-Z]\\w*)`")

// namedPackage is the name of a package in a text, and the extension if it is a file after all.
var namedPackage = regexp.MustCompile(`(^|[^\w/.])((?:internal|cmd|agent)/[a-z0-9][a-z0-9/]*)(\.[a-z]+)?`)

// unspeakable are words that point out of the repository, each with what is wrong with it. They are
// put together here so that this file does not contain them.
var unspeakable = map[*regexp.Regexp]string{
	regexp.MustCompile(`(^|[^\w/.~-])/(wo` + `rk|ro` + `ot)/`):              "a path of somebody's machine",
	regexp.MustCompile(`(^|[^\w/.~-])/(ho` + `me|Us` + `ers)/[a-z]+/`):      "a path of somebody's machine",
	regexp.MustCompile(`\b(deci` + `sions|des` + `ign|anc` + `hors)\.md\b`): "a page that is not in the repository",
	regexp.MustCompile(`\bspec/[0-9]{2}\b`):                                 "a page that is not in the repository",
	regexp.MustCompile(`(?i)\bissues? #?[0-9]+\b`):                          "an issue that a reader cannot open",
}

func checkProse(t tree) []string {
	var found []string
	for _, f := range t.files {
		for i, line := range f.lines() {
			for word, wrong := range unspeakable {
				if m := word.FindString(line); m != "" {
					found = append(found, fmt.Sprintf("%s:%d: %q: %s", f.path, i+1, strings.TrimSpace(m), wrong))
				}
			}
		}
	}
	slices.Sort(found)
	return found
}
