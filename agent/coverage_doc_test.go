package agent_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/internal/config/coveragetest"
)

// Each annotation that a kubelet honours works, or has none to honour it.
func TestCoverageOfAnnotations(t *testing.T) {
	rows := coveragetest.Read(t, coverageTable("annotations"))
	checkSorted(t, rows)
	for _, r := range rows {
		t.Run(r.Name, func(t *testing.T) {
			switch r.Verdict {
			case coveragetest.Works:
				coveragetest.CheckTest(t, r.Evidence)
			case coveragetest.None:
				coveragetest.CheckReason(t, r)
			default:
				t.Errorf("%q is no verdict of an annotation", r.Verdict)
			}
		})
	}
}

// Each reason of a kubelet's events has its row: what works is in the code, and a test speaks of
// it.
func TestCoverageOfEvents(t *testing.T) {
	rows := coveragetest.Read(t, coverageTable("events"))
	checkSorted(t, rows)
	code := productText(t)
	for _, r := range rows {
		t.Run(r.Name, func(t *testing.T) {
			switch r.Verdict {
			case coveragetest.Works:
				coveragetest.CheckTest(t, r.Evidence, r.Name)
				if !strings.Contains(code, `"`+r.Name+`"`) && !slices.Contains(composed, r.Name) {
					t.Error("no code records it")
				}
			case coveragetest.Told, coveragetest.None:
				coveragetest.CheckReason(t, r)
			default:
				t.Errorf("%q is no verdict of an event", r.Verdict)
			}
		})
	}
}

// composed are the reasons that the code makes of parts: how a resize was decided.
var composed = []string{"ResizeDeferred", "ResizeInfeasible"}

func checkSorted(t *testing.T, rows []coveragetest.Row) {
	t.Helper()
	for i := range rows[1:] {
		if rows[i].Name >= rows[i+1].Name {
			t.Errorf("%s: each has one row, in order", rows[i+1].Name)
		}
	}
}

// productText is the code of the agent that is no test.
func productText(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, folder := range []string{"agent", "internal"} {
		err := filepath.WalkDir(filepath.Join(coveragetest.Repository(t), folder), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			content, err := os.ReadFile(path)
			b.Write(content)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

const coverageBegin = "<!-- made from agent/testdata/coverage by go test ./agent -run TestCoverageDoc -update -->\n"

// The page says what the tables say.
func TestCoverageDoc(t *testing.T) {
	pods := coveragetest.Read(t, coverageTable("pods"))
	said := saidOfPods(t, pods)
	var b strings.Builder
	fmt.Fprintf(&b, "\n## Pods\n\n%s| field | | shown by, or what is told |\n|---|---|---|\n", coveragetest.Count(pods))
	for _, r := range pods {
		evidence := r.Evidence
		if r.Verdict == coveragetest.Told {
			_, evidence, _ = strings.Cut(said[r.Name]["member"], "does not support: ")
		}
		writeRow(&b, r, evidence)
	}
	for _, table := range []struct{ title, what, file string }{{"Annotations", "annotation", "annotations"}, {"Events", "reason", "events"}} {
		rows := coveragetest.Read(t, coverageTable(table.file))
		fmt.Fprintf(&b, "\n## %s\n\n%s| %s | | shown by, or what there is instead |\n|---|---|---|\n", table.title, coveragetest.Count(rows), table.what)
		for _, r := range rows {
			writeRow(&b, r, r.Evidence)
		}
	}
	coveragetest.CheckPage(t, coverageBegin, b.String(), update)
}

func writeRow(b *strings.Builder, r coveragetest.Row, evidence string) {
	if r.Verdict == coveragetest.Works {
		evidence = coveragetest.DescribeTest(evidence)
	}
	fmt.Fprintf(b, "| `%s` | %s | %s |\n", r.Name, r.Verdict, evidence)
}
