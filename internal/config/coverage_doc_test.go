package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"berth/internal/config/coveragetest"
)

const coverageBegin = "<!-- made from internal/config/testdata/coverage by go test ./internal/config -run TestCoverageDoc -update -->\n"

// The page says what the tables say.
func TestCoverageDoc(t *testing.T) {
	coveragetest.CheckPage(t, coverageBegin, coverageTables(t), update)
}

// coverageTables are the tables of the page.
func coverageTables(t *testing.T) string {
	fields, flags, gateRows := readRows(t, "fields.txt"), readRows(t, "flags.txt"), readRows(t, "gates.txt")
	var b strings.Builder
	fmt.Fprintf(&b, "\n## Fields\n\n%s| field | | shown by, or what is told |\n|---|---|---|\n", coveragetest.Count(fields))
	for _, r := range fields {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.Name, r.Verdict, describeField(t, r))
	}
	fmt.Fprintf(&b, "\n## Flags\n\n%s| flag | | shown by, or what is told |\n|---|---|---|\n", coveragetest.Count(flags))
	for _, r := range flags {
		fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", r.Name, r.Verdict, describeFlag(t, r))
	}
	fmt.Fprintf(&b, "\n## Feature gates\n\n%s| gate | at 1.36 | | shown by, or what is told |\n|---|---|---|---|\n", coveragetest.Count(gateRows))
	published := publishedGates(t)
	others := map[string][]string{}
	for _, r := range gateRows {
		if r.Verdict == coveragetest.None {
			others[r.Evidence] = append(others[r.Evidence], "`"+r.Name+"`")
			continue
		}
		g := published[r.Name]
		fmt.Fprintf(&b, "| `%s` | %s, %s | %s | %s |\n", r.Name, g.stage, onOff[g.on], r.Verdict, describeGate(t, r, !g.on))
	}
	b.WriteString("\nNo gates of a kubelet on Linux, or without effect there:\n\n")
	for _, why := range slices.Sorted(maps.Keys(others)) {
		fmt.Fprintf(&b, "- %s: %s\n", why, strings.Join(others[why], ", "))
	}
	return b.String()
}

func describeField(t *testing.T, r coveragetest.Row) string {
	switch r.Verdict {
	case coveragetest.Works:
		return coveragetest.DescribeTest(r.Evidence)
	case coveragetest.Told:
		return reasons(naming(told(t, parseDocument(t, r.Evidence)), r.Name))
	}
	return r.Evidence
}

func describeFlag(t *testing.T, r coveragetest.Row) string {
	switch r.Verdict {
	case coveragetest.Works:
		return coveragetest.DescribeTest(r.Evidence)
	case coveragetest.Told:
		return reasons(naming(told(t, document{}, fmt.Sprintf("--%s=%s", r.Name, r.Evidence)), "--"+r.Name))
	}
	return "`" + r.Evidence + "`"
}

// describeGate also says what is told of a gate that works when it is set to other than its
// default.
func describeGate(t *testing.T, r coveragetest.Row, other bool) string {
	if field, ok := strings.CutPrefix(r.Evidence, "field "); ok {
		return "as the field `" + field + "`"
	}
	said := reasons(naming(told(t, document{"featureGates": document{r.Name: other}}), fmt.Sprintf("featureGates[%s]", r.Name)))
	if said != "" {
		said = fmt.Sprintf("%s: %s", onOff[other], said)
	}
	if r.Verdict == coveragetest.Works {
		return strings.TrimSuffix(coveragetest.DescribeTest(r.Evidence)+"; "+said, "; ")
	}
	return said
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
