package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Each test belongs to a group, and each pattern of a group has a test.
func TestGroups(t *testing.T) {
	tests, err := findTests("../e2e")
	if err != nil {
		t.Fatal(err)
	}
	if len(tests) < 200 {
		t.Fatalf("found %d tests", len(tests))
	}
	for _, e2e := range tests {
		if !slices.ContainsFunc(groups, func(g group) bool { return g.has(e2e.file) }) {
			t.Errorf("test/e2e/%s: %s belongs to no group of test/selection/groups.go: name the file in one", e2e.file, e2e.name)
		}
	}
	for _, g := range groups {
		for _, pattern := range g.files {
			one := group{files: []string{pattern}}
			if !slices.ContainsFunc(tests, func(e2e test) bool { return one.has(e2e.file) }) {
				t.Errorf("group %q: no file with a test matches %q", g.name, pattern)
			}
		}
		for _, p := range g.packages {
			if info, err := os.Stat(filepath.Join("../..", p)); err != nil || !info.IsDir() {
				t.Errorf("group %q: the folder %s does not exist", g.name, p)
			}
		}
	}
	for _, name := range always {
		if !slices.ContainsFunc(tests, func(e2e test) bool { return e2e.name == name && e2e.tags == "" }) {
			t.Errorf("%s always runs, and does not exist", name)
		}
	}
	for name := range parseDurations(durations) {
		if !slices.ContainsFunc(tests, func(e2e test) bool { return e2e.name == name }) {
			t.Errorf("durations.txt: %s does not exist", name)
		}
	}
}

// Each package of the product is covered by a group.
func TestEveryPackageHasAGroup(t *testing.T) {
	t.Chdir("../..")
	imports, err := importGraph()
	if err != nil {
		t.Fatal(err)
	}
	for folder := range imports {
		top, _, _ := strings.Cut(folder, "/")
		if top != "internal" && top != "agent" && top != "cmd" {
			continue
		}
		if !slices.ContainsFunc(groups, func(g group) bool { return g.covers(folder) }) {
			t.Errorf("%s belongs to no group of test/selection/groups.go", folder)
		}
	}
}

func TestDistances(t *testing.T) {
	imports := map[string][]string{"cmd": {"agent"}, "agent": {"a", "b"}, "a": {"c"}, "b": nil, "c": nil}
	far := distances(imports, []string{"c"})
	for folder, want := range map[string]int{"c": 0, "a": 1, "agent": 2, "cmd": 3} {
		if got, ok := far[folder]; !ok || got != want {
			t.Errorf("%s is %d away (%v), want %d", folder, got, ok, want)
		}
	}
	if _, ok := far["b"]; ok {
		t.Error("b is not reached by c")
	}
}

func TestComputeChoices(t *testing.T) {
	tests := []test{
		{file: "agent_test.go", name: "TestExamplesServe"},
		{file: "exec_test.go", name: "TestExecB"},
		{file: "exec_test.go", name: "TestExecA"},
		{file: "csi_test.go", name: "TestCSI"},
		{file: "attach_test.go", name: "TestAttach"},
		{file: "oom_test.go", name: "TestOOM"},
		{file: "vm_test.go", name: "TestVM", tags: "e2e && vm"},
	}
	took := map[string]time.Duration{"TestExamplesServe": time.Minute, "TestCSI": time.Second, "TestExecA": time.Second, "TestExecB": time.Second, "TestAttach": time.Second, "TestOOM": time.Hour}
	far := map[string]int{"internal/api": 0, "internal/storage": 2, "internal/observe": 1}
	for _, c := range []struct {
		name    string
		changed []string
		budget  time.Duration
		want    string
		left    int
	}{
		{"nearest first, each file in turn", nil, 2 * time.Minute, "TestExamplesServe TestAttach TestExecA TestExecB TestCSI", 1},
		{"a changed test before all others", []string{"test/e2e/csi_test.go"}, 2 * time.Minute, "TestExamplesServe TestCSI TestAttach TestExecA TestExecB", 1},
		{"the budget ends", nil, 62 * time.Second, "TestExamplesServe TestAttach TestExecA", 3},
		{"what always runs is not left out", nil, time.Second, "TestExamplesServe", 5},
	} {
		chosen, left := computeChoices(tests, far, c.changed, took, c.budget)
		var names []string
		for _, choice := range chosen {
			names = append(names, choice.name)
		}
		if got := strings.Join(names, " "); got != c.want || left != c.left {
			t.Errorf("%s: got %s and %d left, want %s and %d", c.name, got, left, c.want, c.left)
		}
	}
}

func TestFoldersOf(t *testing.T) {
	packages := map[string][]string{"agent": nil, "internal/api/server": nil}
	got := foldersOf([]string{"agent/testdata/a.txtar", "internal/api/server/x.go", "bundle/podshim/c/main.c", "README.md", "agent/a.go"}, packages)
	if want := []string{".", "agent", "bundle/podshim/c", "internal/api/server"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A package with a real test, in a clone without history, gets a sample that includes what
// always runs.
func TestSelectWithoutABase(t *testing.T) {
	t.Chdir("../..")
	var out, log bytes.Buffer
	if err := selectTests(&out, &log, "no-such-commit", time.Minute); err != nil {
		t.Fatal(err)
	}
	for _, name := range always {
		if !strings.Contains(out.String(), name) {
			t.Errorf("%s is not among\n%s", name, out.String())
		}
	}
}

func TestDurations(t *testing.T) {
	file := filepath.Join(t.TempDir(), "events.json")
	events := `{"Action":"pass","Test":"TestA","Elapsed":3.2}
{"Action":"pass","Test":"TestA/sub","Elapsed":3}
{"Action":"fail","Test":"TestB","Elapsed":9}
{"Action":"pass","Package":"p","Elapsed":99}
`
	if err := os.WriteFile(file, []byte(events), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printDurations(&out, file); err != nil {
		t.Fatal(err)
	}
	if got := parseDurations(out.Bytes()); got["TestA"] != 3*time.Second || got["TestB"] != parseDurations(durations)["TestB"] || got["TestA/sub"] != 0 {
		t.Errorf("got %q", out.String())
	}
}
