// Package coveragetest holds the tables behind docs/coverage.md: which features work, with evidence
// that is checked.
//
// Owns: the form of a table, its verdicts, and its part of the page.
// Reads: tables, the tests that they name, and their scenarios.
// Never: is linked into the binary.
package coveragetest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The verdicts of rows.
const (
	// Works: as in the kubelet. The row names the directory and test that show it; after a slash, a
	// scenario of the directory's testdata.
	Works = "works"
	// Told: not as in the kubelet, which is reported. The row has the value that requests it.
	Told = "told"
	// None: the kubelet has no effect for it either. The row has the reason.
	None = "none"
	// As: an alias of another item, which the row names.
	As = "as"
)

// Row is one line of a table: the coverage of one item.
type Row struct{ Name, Verdict, Evidence string }

// Read reads a table with one row per item: name, verdict, evidence. A line that begins with # is a
// comment.
func Read(t *testing.T, file string) []Row {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rows []Row
	for n, line := range strings.Split(strings.TrimSpace(string(content)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		if len(words) < 2 {
			t.Fatalf("%s:%d: %q is no name and verdict", file, n+1, line)
		}
		rows = append(rows, Row{words[0], words[1], strings.Join(words[2:], " ")})
	}
	return rows
}

// CheckNames compares the names of a table with the existing items: sorted, one row each.
func CheckNames(t *testing.T, rows []Row, want []string) {
	t.Helper()
	var got []string
	for _, r := range rows {
		got = append(got, r.Name)
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("each has one row, in order (-without a row, +without a thing):\n%s", diff)
	}
}

// CheckReason checks that a row has a reason.
func CheckReason(t *testing.T, r Row) {
	t.Helper()
	if len(strings.Fields(r.Evidence)) < 2 {
		t.Errorf("%q is no reason", r.Evidence)
	}
}

// CheckPage compares the part of docs/coverage.md after the line begin with the tables, or writes
// it. A part ends at the next one.
func CheckPage(t *testing.T, begin, want string, write *bool) {
	t.Helper()
	page := filepath.Join(Repository(t), "docs/coverage.md")
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(content), begin)
	if !ok {
		t.Fatalf("%s has no line %q", page, begin)
	}
	old, tail := rest, ""
	if next := strings.Index(rest, "\n<!-- made from "); next >= 0 {
		old, tail = rest[:next], rest[next:]
	}
	if *write {
		if err := os.WriteFile(page, []byte(head+begin+want+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, old); diff != "" {
		t.Errorf("run: go test -run %s -update\n(-want +got):\n%s", t.Name(), diff)
	}
}

// Count formats the number of rows with each verdict.
func Count(rows []Row) string {
	n := map[string]int{}
	for _, r := range rows {
		n[r.Verdict]++
	}
	parts := []string{fmt.Sprintf("%d:", len(rows))}
	for _, verdict := range []string{Works, Told, None, As} {
		if n[verdict] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s,", n[verdict], verdict))
		}
	}
	return strings.TrimSuffix(strings.Join(parts, " "), ",") + ".\n\n"
}

// DescribeTest formats the test of a row, such as "internal/config TestLoad/defaults".
func DescribeTest(evidence string) string {
	folder, name, _ := strings.Cut(evidence, " ")
	return fmt.Sprintf("%s `%s`", folder, name)
}
