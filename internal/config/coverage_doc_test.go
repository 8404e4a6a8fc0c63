package config

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	coveragePage  = "../../docs/coverage.md"
	coverageBegin = "<!-- made from internal/config/testdata/coverage by go test ./internal/config -run TestCoverageDoc -update -->\n"
)

// The page says what the tables say.
func TestCoverageDoc(t *testing.T) {
	content, err := os.ReadFile(coveragePage)
	if err != nil {
		t.Fatal(err)
	}
	head, old, ok := strings.Cut(string(content), coverageBegin)
	if !ok {
		t.Fatalf("%s has no line %q", coveragePage, coverageBegin)
	}
	want := coverageTables(t)
	if *update {
		if err := os.WriteFile(coveragePage, []byte(head+coverageBegin+want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, old); diff != "" {
		t.Errorf("run: go test ./internal/config -run TestCoverageDoc -update\n(-want +got):\n%s", diff)
	}
}

// coverageTables are the tables of the page.
func coverageTables(t *testing.T) string {
	fields, flags, gateRows := readRows(t, "fields.txt"), readRows(t, "flags.txt"), readRows(t, "gates.txt")
	var b strings.Builder
	fmt.Fprintf(&b, "\n## Fields\n\n%s| field | | shown by, or what is told |\n|---|---|---|\n", count(fields))
	for _, r := range fields {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.name, r.verdict, describeField(t, r))
	}
	fmt.Fprintf(&b, "\n## Flags\n\n%s| flag | | shown by, or what is told |\n|---|---|---|\n", count(flags))
	for _, r := range flags {
		fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", r.name, r.verdict, describeFlag(t, r))
	}
	fmt.Fprintf(&b, "\n## Feature gates\n\n%s| gate | at 1.36 | | shown by, or what is told |\n|---|---|---|---|\n", count(gateRows))
	published := publishedGates(t)
	others := map[string][]string{}
	for _, r := range gateRows {
		if r.verdict == noneVerdict {
			others[r.evidence] = append(others[r.evidence], "`"+r.name+"`")
			continue
		}
		g := published[r.name]
		fmt.Fprintf(&b, "| `%s` | %s, %s | %s | %s |\n", r.name, g.stage, onOff[g.on], r.verdict, describeGate(t, r, !g.on))
	}
	b.WriteString("\nNo gates of a kubelet on Linux, or without effect there:\n\n")
	for _, why := range slices.Sorted(maps.Keys(others)) {
		fmt.Fprintf(&b, "- %s: %s\n", why, strings.Join(others[why], ", "))
	}
	return b.String()
}

// count says how many rows have each verdict.
func count(rows []row) string {
	n := map[string]int{}
	for _, r := range rows {
		n[r.verdict]++
	}
	parts := []string{fmt.Sprintf("%d:", len(rows))}
	for _, verdict := range []string{worksVerdict, toldVerdict, noneVerdict, asVerdict} {
		if n[verdict] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s,", n[verdict], verdict))
		}
	}
	return strings.TrimSuffix(strings.Join(parts, " "), ",") + ".\n\n"
}

func describeField(t *testing.T, r row) string {
	switch r.verdict {
	case worksVerdict:
		return describeTest(r.evidence)
	case toldVerdict:
		return reasons(naming(told(t, parseDocument(t, r.evidence)), r.name))
	}
	return r.evidence
}

func describeFlag(t *testing.T, r row) string {
	switch r.verdict {
	case worksVerdict:
		return describeTest(r.evidence)
	case toldVerdict:
		return reasons(naming(told(t, document{}, fmt.Sprintf("--%s=%s", r.name, r.evidence)), "--"+r.name))
	}
	return "`" + r.evidence + "`"
}

// describeGate also says what is told of a gate that works when it is set to other than its
// default.
func describeGate(t *testing.T, r row, other bool) string {
	if field, ok := strings.CutPrefix(r.evidence, "field "); ok {
		return "as the field `" + field + "`"
	}
	said := reasons(naming(told(t, document{"featureGates": document{r.name: other}}), fmt.Sprintf("featureGates[%s]", r.name)))
	if said != "" {
		said = fmt.Sprintf("%s: %s", onOff[other], said)
	}
	if r.verdict == worksVerdict {
		return strings.TrimSuffix(describeTest(r.evidence)+"; "+said, "; ")
	}
	return said
}

// describeTest spells a test, such as "internal/config TestLoad/defaults".
func describeTest(evidence string) string {
	folder, name, _ := strings.Cut(evidence, " ")
	return fmt.Sprintf("%s `%s`", folder, name)
}

// decorations are what stands around the reason in a line of Load.
var decorations = regexp.MustCompile(`^unlike with the kubelet, |^(FILE: )?[A-Za-z.\[\]0-9]+: |^--[a-z-]+ has no effect: |: [A-Za-z.\[\]0-9]+ \([^:]*\)$`)

// reasons are what lines of Load say, without what they are about.
func reasons(lines []string) string {
	var out []string
	for _, line := range lines {
		if strings.HasPrefix(line, "deprecated flags") {
			continue
		}
		out = append(out, decorations.ReplaceAllString(line, ""))
	}
	return strings.Join(out, "; ")
}
