// Package berth_test holds the rules of the repository that a compiler does not check: who may import whom, what the binary may
// link, what every package says about itself. Each rule gives its reason and the fix when it fails; rules_examples_test.go shows
// each rule what it must find and what it must leave alone.
package berth_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

// ranks gives every package of the product its rank. A package imports strictly lower ranks only. Packages that are still to come
// have theirs already, so that a new package finds its place instead of choosing one.
var ranks = map[string]int{
	"cmd/berth": 9,

	"agent": 8,

	"internal/syncloop":  7,
	"internal/server":    7,
	"internal/localapi":  7,
	"internal/dashboard": 7,

	"internal/podworkers": 6,
	"internal/podconfig":  6,
	"internal/node":       6,

	"internal/podsync":   5,
	"internal/eviction":  5,
	"internal/admission": 5,

	"internal/kuberuntime": 4,
	"internal/pleg":        4,
	"internal/prober":      4,
	"internal/status":      4,
	"internal/volumes":     4,

	"internal/objects": 3,
	"internal/images":  3,
	"internal/devices": 3,
	"internal/logs":    3,
	"internal/stats":   3,
	"internal/action":  3,
	"internal/crispec": 3,

	"internal/topology": 2,
	"internal/cri":      2,
	"internal/certs":    2,
	"internal/embedded": 2,
	"internal/plugins":  2,

	"internal/cgroups":    1,
	"internal/kube":       1,
	"internal/events":     1,
	"internal/allocation": 1,
	"internal/lifecycle":  1,

	"internal/pod":     0,
	"internal/config":  0,
	"internal/journal": 0,
}

// testSupport are the packages that exist for tests, each beside what it fakes. They are not linked into the product, and import
// at most the rank of the package that they stand beside.
var testSupport = map[string]string{
	"agent/agenttest":        "agent",
	"internal/cri/critest":   "internal/cri",
	"internal/kube/kubetest": "internal/kube",
	"internal/pod/podtest":   "internal/pod",
}

// ban is an import that is refused although the ranks would allow it. from is a folder of this module, whose tests are free, or ""
// for everything, tests included; to is a pattern of import paths as the go command has them: "x/..." is x and what is below it.
type ban struct{ from, to string }

var bans = map[ban]string{
	{"internal/syncloop", "berth/internal/cri"}:           "the loop must not be able to block on the runtime",
	{"internal/syncloop", "berth/internal/kuberuntime"}:   "the loop must not be able to block on the runtime",
	{"internal/podworkers", "berth/internal/cri"}:         "workers reach the runtime only through the steps of podsync",
	{"internal/podworkers", "berth/internal/kuberuntime"}: "workers reach the runtime only through the steps of podsync",
	{"internal/podconfig", "berth/internal/cri"}:          "what is desired must not depend on what runs",
	{"internal/podconfig", "berth/internal/kuberuntime"}:  "what is desired must not depend on what runs",

	{"", "k8s.io/kubernetes/..."}:          "it is not made to be imported: it drags its own replacements of every k8s.io module",
	{"", "k8s.io/client-go/.../fake/..."}:  "the fake clientset ignores field selectors, UID preconditions and the status subresource: tests over it prove nothing; use kube/kubetest",
	{"", "github.com/google/cadvisor/..."}: "it polls; stats reads cgroups itself",
	{"internal", "log"}:                    "a component logs to the *slog.Logger that it is given",
	{"agent", "log"}:                       "a component logs to the *slog.Logger that it is given",
	{"internal", "math/rand"}:              "math/rand/v2 needs no seed and takes no lock",
	{"internal", "github.com/spf13/cobra"}: "the command line belongs to cmd/berth",
}

// linkBans are import paths, with everything below them, that must not be in the binary.
var linkBans = map[string]string{
	"k8s.io/kubernetes":                      "not made to be imported",
	"k8s.io/client-go/kubernetes":            "a clientset links the types of 55 API groups: about 10 MB of memory on every node; use internal/kube",
	"k8s.io/client-go/informers":             "typed informers link the clientset; use a reflector of tools/cache over internal/kube",
	"k8s.io/client-go/listers":               "typed listers link the types of all API groups",
	"k8s.io/apiserver":                       "delegated authentication and authorization by it brings CEL and its parsers: about 10 MB of memory on every node",
	"github.com/containerd/containerd/v2":    "containerd is a process of its own; the agent speaks CRI, and containerd/api for what CRI lacks",
	"github.com/google/go-containerregistry": "images are made when the bundle is built and pulled by the runtime, never by the agent",
	"github.com/google/cadvisor":             "it polls; stats reads cgroups itself",
	"github.com/google/go-cmp":               "for tests",
	"go.uber.org/goleak":                     "for tests",
	"google.golang.org/grpc/test":            "for tests",
	"net/http/httptest":                      "for tests",
	"testing":                                "for tests: a package of the product imports a test-support package or a test helper",
	"berth/agent/agenttest":                  "test support",
	"berth/internal/cri/critest":             "test support",
	"berth/internal/kube/kubetest":           "test support",
	"berth/internal/pod/podtest":             "test support",
}

// cgroupfsReaders are the folders whose code may name the cgroup file system, and what for.
var cgroupfsReaders = map[string]string{
	"internal/cgroups":  "owns it",
	"internal/embedded": "checks what the host offers before it starts the runtime",
	"internal/stats":    "reads usage",
}

// rule is one thing that holds everywhere in the repository. check returns what breaks it, as "file:line: what".
type rule struct {
	name, why, fix string
	check          func(tree) []string
}

var rules = []rule{
	{
		name: "ranks", check: checkRanks,
		why: "imports that go one way only keep each package readable without its neighbours",
		fix: "move the code to the lower package, or declare at the caller the interface that it needs and hand the implementation over in agent/wire.go; a new package gets its rank in rules_test.go",
	},
	{
		name: "bans", check: checkBans,
		why: "the reason stands beside each ban",
		fix: "see the reason",
	},
	{
		name: "criClients", check: checkCRIClients,
		why: "deadlines, error classes and the codec of labels hold only if every call goes through them",
		fix: "add the call to internal/cri and use cri.Client",
	},
	{
		name: "cgroupfs", check: checkCgroupfs,
		why: "two writers of one cgroup undo each other",
		fix: "ask internal/cgroups",
	},
	{
		name: "docs", check: checkDocs,
		why: "a reader decides by the package doc whether to read on: what it is, what it owns, what it reads, what it never does",
		fix: "write one package doc: `Package x …`, then the lines `Owns: …`, `Reads: …`, `Never: …` (see internal/pod/doc.go)",
	},
	{
		name: "names", check: checkNames,
		why: "a package that is named after nothing collects everything",
		fix: "name the job that the package does",
	},
	{
		name: "sleep", check: checkSleep,
		why: "a sleep cannot be cancelled, and a test that sleeps in real time is slow and flaky",
		fix: "select on a timer and ctx.Done(); in a test use a testing/synctest bubble, or wait for the thing itself",
	},
	{
		name: "skip", check: checkSkip,
		why: "a skipped test looks like one that passed",
		fix: "move a test that needs root or a runtime to test/e2e, and let it fail where it cannot run",
	},
	{
		name: "e2eTag", check: checkE2ETag,
		why: "`make test` must run as any user on any machine",
		fix: "begin the file with `//go:build e2e`",
	},
	{
		name: "exit", check: checkExit,
		why: "an exit in a package skips everything that the callers still have to close",
		fix: "return an error; only cmd/ decides the exit code",
	},
	{
		name: "recover", check: checkRecover,
		why: "the agent is crash-only: a recovered panic goes on with state that nobody understands (docs/adr)",
		fix: "let the process end; the restart is invisible to pods",
	},
	{
		name: "channels", check: checkChannels,
		why: "a package-level channel is shared by two agents in one process, and outlives the bubble of the test that made it",
		fix: "make the channel in New; stop by context",
	},
	{
		name: "todo", check: checkTodo,
		why: "a note without a reason is never taken up",
		fix: "do it, or say why not yet: `TODO: … because …`",
	},
	{
		name: "workspace", check: checkWorkspace,
		why: "a go.work file or a replace directive makes a build depend on what lies around it, and `go install` refuses it",
		fix: "depend on a released version",
	},
	{
		name: "dependencies", check: checkDependencies,
		why: "a dependency is a decision: docs/dependencies.md says what each is for",
		fix: "add the row, remove the row, or do without the dependency",
	},
	{
		name: "architecture", check: checkArchitecture,
		why: "ARCHITECTURE.md is the map of what exists: a hole or a ghost in it misleads",
		fix: "name the package in the layout of ARCHITECTURE.md, or remove the name",
	},
	{
		name: "prose", check: checkProse,
		why: "the text of the repository speaks of the project alone, and of nothing that a reader of it cannot open",
		fix: "say the thing itself, or name a public source",
	},
}

func TestRules(t *testing.T) {
	tr, err := readTree(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			if found := r.check(tr); len(found) > 0 {
				t.Errorf("%s\nwhy: %s\nfix: %s", strings.Join(found, "\n"), r.why, r.fix)
			}
		})
	}
}

func TestLinkSet(t *testing.T) {
	for _, tags := range []string{"", "bundle"} {
		t.Run("tags="+tags, func(t *testing.T) {
			// -e, because the archive that the tag bundle embeds may not be built yet. A package that is missing is found by the compiler.
			cmd := exec.Command("go", "list", "-e", "-deps", "-tags", tags, "./cmd/berth")
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("go list -deps ./cmd/berth: %v\n%s", err, &stderr)
			}
			linked := strings.Fields(string(out))
			if !slices.Contains(linked, "berth/agent") {
				t.Fatalf("go list -deps ./cmd/berth: berth/agent is not among the %d packages listed: this test looks at the wrong binary\n%s", len(linked), &stderr)
			}
			for _, found := range bannedLinks(linked) {
				t.Errorf("cmd/berth links %s\nfix: `go mod why -m` and `go list -deps -json` show who imports it", found)
			}
		})
	}
}

// bannedLinks returns the packages of linked that the binary must not contain, each with the reason.
func bannedLinks(linked []string) []string {
	var found []string
	for _, p := range linked {
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
		if f.isTest() || f.dir() == "." || within(f.dir(), "test") || within(f.dir(), "bench") {
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
		if f.isTest() || within(f.dir(), "internal/cri") {
			return ""
		}
		if n := sel.Sel.Name; n == "NewRuntimeServiceClient" || n == "NewImageServiceClient" {
			return n + ": only internal/cri speaks CRI"
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

func checkDocs(t tree) []string {
	docs, clauses := map[string][]source{}, map[string]source{}
	for _, f := range t.goFiles() {
		if f.isTest() {
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
	for _, f := range t.goFiles() {
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
		// What is outside of the process, in e2e tests, can only be looked at again after a while.
		isTest := f.isTest() || testSupport[f.dir()] != ""
		if !isSelector(sel, "time", "Sleep") || within(f.dir(), "test/e2e") || isTest && f.imports("testing/synctest") {
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
		if within(f.dir(), "test/e2e") && f.isTest() && !bytes.HasPrefix(f.text, []byte("//go:build e2e\n")) {
			found = append(found, f.path+":1: has no build constraint e2e")
		}
	}
	return found
}

func checkExit(t tree) []string {
	return findSelectors(t, func(f source, sel *ast.SelectorExpr) string {
		if f.isTest() || within(f.dir(), "cmd") || within(f.dir(), "test") {
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
	for _, f := range t.goFiles() {
		if f.isTest() || testSupport[f.dir()] != "" {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if id, ok := call.Fun.(*ast.Ident); ok && id.Name == "recover" {
					found = append(found, f.at(call.Pos())+"recovers from a panic")
				}
			}
			return true
		})
	}
	return found
}

func checkChannels(t tree) []string {
	found := findSelectors(t, func(_ source, sel *ast.SelectorExpr) string {
		if sel.Sel.Name == "NeverStop" {
			return "NeverStop is a package-level channel"
		}
		return ""
	})
	for _, f := range t.goFiles() {
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

// makesChannel reports whether e is make(chan …), or a function literal that is called at once and returns a channel.
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
			if req.Indirect && !isTool {
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
	dirs := map[string]bool{}
	for _, f := range t.goFiles() {
		if f.dir() != "." {
			dirs[f.dir()] = true
		}
	}
	var found []string
	for dir := range dirs {
		if !regexp.MustCompile(`(^|[^\w/])` + regexp.QuoteMeta(dir) + `($|[^\w])`).MatchString(text) {
			found = append(found, fmt.Sprintf("%s: does not name %s", doc, dir))
		}
	}
	for i, line := range t.text(doc) {
		for _, m := range namedPackage.FindAllStringSubmatch(line, -1) {
			if dir := path.Clean(m[2]); !dirs[dir] {
				found = append(found, fmt.Sprintf("%s:%d: there is no package %s", doc, i+1, dir))
			}
		}
	}
	slices.Sort(found)
	return found
}

var namedPackage = regexp.MustCompile(`(^|[^\w/.])((?:internal|cmd|agent)/[a-z0-9][a-z0-9/]*)`)

// unspeakable are words that point out of the repository, each with what is wrong with it. They are put together here so that this
// file does not contain them.
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

// readTree reads the text of the repository at root: without what is built, checksums and binary files.
func readTree(root string) (tree, error) {
	files := map[string][]byte{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "dist"}, d.Name()):
			return fs.SkipDir
		case !d.Type().IsRegular() || d.Name() == "go.sum":
			return nil
		}
		text, err := os.ReadFile(p)
		if err == nil && !bytes.Contains(text, []byte{0}) {
			files[filepath.ToSlash(p)] = text
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
