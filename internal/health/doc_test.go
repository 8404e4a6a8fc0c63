package health_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/health"
)

var update = flag.Bool("update", false, "write the table of docs/health.md")

// docTable is the part of docs/health.md that is made from the declaration.
func docTable() string {
	yes := map[bool]string{true: "yes"}
	var b, sections strings.Builder
	b.WriteString("| condition | depends on | shows after | Node is not ready | /healthz fails |\n|---|---|---|---|---|\n")
	for _, c := range health.Declared() {
		var deps []string
		for _, d := range c.DependsOn {
			deps = append(deps, string(d))
		}
		after := "at once"
		if c.VisibleAfter > 0 {
			after = fmt.Sprintf("%g s", c.VisibleAfter.Seconds())
		}
		anchor := strings.TrimPrefix(c.Code.More(), "docs/health.md")
		fmt.Fprintf(&b, "| [%s](%s) | %s | %s | %s | %s |\n", c.Code, anchor, strings.Join(deps, ", "), after, yes[c.MakesNotReady], yes[c.FailsHealthz])
		fmt.Fprintf(&sections, "\n## %s\n\n%s %s\n", c.Code, c.Title, c.Help)
	}
	return b.String() + sections.String()
}

// The page says what the declaration says.
func TestDoc(t *testing.T) {
	const page, begin = "../../docs/health.md", "<!-- made from internal/health by go test ./internal/health -update -->\n"
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, table, ok := strings.Cut(string(content), begin)
	if !ok {
		t.Fatalf("%s has no line %q", page, begin)
	}
	if *update {
		if err := os.WriteFile(page, []byte(head+begin+docTable()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(docTable(), table); diff != "" {
		t.Errorf("run: go test ./internal/health -update\n(-want +got):\n%s", diff)
	}
}
