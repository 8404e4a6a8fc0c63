// Package coveragetest holds tables of what works, and how that is known, to be true: those behind
// docs/coverage.md.
//
// Owns: the form of a table, its verdicts, and its part of the page.
// Reads: tables, the tests that they name, and their stories.
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
	// Works: as with the kubelet. The row names folder and test that show it; what is behind a
	// slash is a story of the folder's testdata.
	Works = "works"
	// Told: not as with the kubelet, which is told. The row has what asks for it.
	Told = "told"
	// None: the kubelet does nothing for it either. The row says why.
	None = "none"
	// As: it stands for another thing, which the row names.
	As = "as"
)

// Row is one line of a table: what becomes of a thing.
type Row struct{ Name, Verdict, Evidence string }

// Read reads a table, which says each thing once: name, verdict, evidence. A line that begins with
// # is a comment.
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

// CheckNames compares the names of a table with what there is: sorted, one row each.
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

// CheckReason checks that a row says why.
func CheckReason(t *testing.T, r Row) {
	t.Helper()
	if len(strings.Fields(r.Evidence)) < 2 {
		t.Errorf("%q is no reason", r.Evidence)
	}
}

// CheckPage compares the part of docs/coverage.md that begins with a line with what the tables say,
// or writes it. A part ends where the next one begins.
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

// Count says how many rows have each verdict.
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

// DescribeTest spells the test of a row, such as "internal/config TestLoad/defaults".
func DescribeTest(evidence string) string {
	folder, name, _ := strings.Cut(evidence, " ")
	return fmt.Sprintf("%s `%s`", folder, name)
}
