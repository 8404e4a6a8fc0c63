package main

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed durations.txt
var durations []byte

// A landed change is rarely older than this, and a day's work is compared with what was there
// before.
const settled = 4 * time.Hour

func main() {
	base := flag.String("base", os.Getenv("BASE"), "the `commit` to compare with; the newest that is 4 hours older than HEAD if empty")
	budget := flag.Duration("budget", 8*time.Minute, "the sum of the durations of the chosen tests")
	record := flag.String("record", "", "read gotestsum's timing events from `file`, print durations.txt, and exit")
	flag.Parse()
	err := error(nil)
	if *record != "" {
		err = printDurations(os.Stdout, *record)
	} else {
		err = selectTests(os.Stdout, os.Stderr, *base, *budget)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "selection:", err)
		os.Exit(1)
	}
}

// selectTests prints a line per package with chosen tests, "./test/e2e ^(TestA|TestB)$", and why
// each was chosen to log.
func selectTests(out, log io.Writer, base string, budget time.Duration) error {
	tests, err := findTests("test/e2e")
	if err != nil {
		return fmt.Errorf("find tests: %w", err)
	}
	imports, err := importGraph()
	if err != nil {
		return err
	}
	files, since := changedFiles(base)
	changed := foldersOf(files, imports)
	fmt.Fprintf(log, "selection: %d files in %d folders changed since %s\n", len(files), len(changed), since)
	if files == nil { // nothing to compare with: a sample of every group
		changed = everyFolder()
	}
	chosen, left := computeChoices(tests, distances(imports, changed), files, parseDurations(durations), budget)
	names := make(map[string][]string)
	for _, c := range chosen {
		folder := path.Dir(path.Join("test/e2e", c.file))
		names[folder] = append(names[folder], c.name)
		fmt.Fprintf(log, "selection: %s (%s)\n", c.name, c.why)
	}
	fmt.Fprintf(log, "selection: %d tests, %d more are related and do not fit into %s: make e2e runs all\n", len(chosen), left, budget)
	for _, folder := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(out, "./%s ^(%s)$\n", folder, strings.Join(names[folder], "|"))
	}
	return nil
}

// findTests returns the tests below a folder, by file and line.
func findTests(root string) ([]test, error) {
	var tests []test
	err := filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		tags := extraTags(f)
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") && fn.Name.Name != "TestMain" {
				tests = append(tests, test{file: filepath.ToSlash(rel), name: fn.Name.Name, tags: tags})
			}
		}
		return nil
	})
	return tests, err
}

// extraTags returns the build constraint of a file if the tags of `make e2e` do not meet it.
func extraTags(f *ast.File) string {
	for _, group := range f.Comments {
		for _, c := range group.List {
			x, err := constraint.Parse(c.Text)
			if err == nil && !x.Eval(func(tag string) bool { return tag == "e2e" || tag == "bundle" || tag == "linux" }) {
				return x.String()
			}
		}
	}
	return ""
}

// importGraph returns what each folder of the root module imports of it.
func importGraph() (map[string][]string, error) {
	out, err := command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...")
	if err != nil {
		return nil, err
	}
	graph := make(map[string][]string)
	for line := range strings.Lines(out) {
		var folders []string
		for _, p := range strings.Fields(line) {
			if folder, ours := strings.CutPrefix(p, "berth/"); ours {
				folders = append(folders, folder)
			}
		}
		if len(folders) > 0 && strings.HasPrefix(line, "berth/") {
			graph[folders[0]] = folders[1:]
		}
	}
	return graph, nil
}

// changedFiles returns the files that differ from the base, and what the base is. It returns nil
// if there is no base, as in a shallow clone.
func changedFiles(base string) ([]string, string) {
	if base == "" {
		head, err := command("git", "log", "-1", "--format=%ct")
		if err != nil {
			return nil, "no commit"
		}
		at, err := strconv.ParseInt(strings.TrimSpace(head), 10, 64)
		if err != nil {
			return nil, "no commit"
		}
		before := fmt.Sprintf("--before=%d", at-int64(settled/time.Second))
		found, err := command("git", "rev-list", "-1", before, "HEAD")
		if base = strings.TrimSpace(found); err != nil || base == "" {
			return nil, "no commit that is " + settled.String() + " older than HEAD"
		}
	}
	out, err := command("git", "diff", "--name-only", base)
	if err != nil {
		return nil, base + ", which is not there"
	}
	files := []string{}
	for line := range strings.Lines(out) {
		files = append(files, strings.TrimSpace(line))
	}
	return files, base
}

// foldersOf returns the folders that changed files belong to: the nearest package of the root
// module above each, or else its own folder, for those of other modules and for documents.
func foldersOf(files []string, packages map[string][]string) []string {
	var folders []string
	for _, f := range files {
		folder := path.Dir(f)
		for p := folder; p != "."; p = path.Dir(p) {
			if _, ok := packages[p]; ok {
				folder = p
				break
			}
		}
		folders = append(folders, folder)
	}
	slices.Sort(folders)
	return slices.Compact(folders)
}

func everyFolder() []string {
	var folders []string
	for _, g := range groups {
		folders = append(folders, g.packages...)
	}
	return folders
}

// parseDurations reads lines of a test's name and seconds.
func parseDurations(text []byte) map[string]time.Duration {
	took := make(map[string]time.Duration)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		if seconds, err := strconv.ParseFloat(fields[1], 64); err == nil {
			took[fields[0]] = time.Duration(seconds * float64(time.Second))
		}
	}
	return took
}

// printDurations prints the durations of the passed tests in a file of timing events, over those
// that are known already.
func printDurations(w io.Writer, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	took := parseDurations(durations)
	for scanner := bufio.NewScanner(bytes.NewReader(text)); scanner.Scan(); {
		var event struct {
			Action, Test string
			Elapsed      float64
		}
		if err := json.Unmarshal(scanner.Bytes(), &event); err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		if event.Action == "pass" && event.Test != "" && !strings.Contains(event.Test, "/") {
			took[event.Test] = time.Duration(event.Elapsed * float64(time.Second))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(took)) {
		fmt.Fprintf(w, "%s %.0f\n", name, took[name].Seconds())
	}
	return nil
}

func command(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(exit.Stderr))
	}
	return string(out), err
}
