package agent_test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

const (
	metricsPage  = "../docs/metrics-reference.md"
	metricsBegin = "<!-- made from agent/testdata/metrics by go test ./agent -run TestMetricsDoc -update -->\n"
)

// familyLine is a family as one of the lists of families has it.
type familyLine struct {
	name, path, stability, kind, labels, buckets string
}

// sortedLabels are labels in the order of their names, in braces.
func sortedLabels(list string) string {
	labels := strings.Split(list, ",")
	slices.Sort(labels)
	return "{" + strings.Join(labels, ",") + "}"
}

func readLines(t *testing.T, path string) []string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimRight(string(content), "\n"), "\n")
}

var (
	publishedLine = regexp.MustCompile(`^(\S+) (\S+) (\S+) (\S+) \{(.*?)\}(?: \[(.*)\])?$`)
	ownLine       = regexp.MustCompile(`^([a-z_]+)\{(.*?)\} (?:(gauge|counter|histogram)|not shown)(?: \[(.*)\])?$`)
	nameLine      = regexp.MustCompile(`^(\S+) (\S+) \{(.*)\}$`)
	helpLine      = regexp.MustCompile(`^\t\[([A-Z]+)\] `)
)

// publishedFamilies are those of the kubelet (Kubernetes documentation, "Kubernetes Metrics
// Reference").
func publishedFamilies(t *testing.T) (out []familyLine) {
	t.Helper()
	for _, line := range readLines(t, "testdata/metrics/published.txt")[1:] {
		m := publishedLine.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("not understood: %q", line)
		}
		out = append(out, familyLine{m[1], m[2], m[3], m[4], sortedLabels(m[5]), m[6]})
	}
	return out
}

// ownFamilies are the agent's, by path and name, as the tests TestMetricFamilies and TestNames hold
// them to be.
func ownFamilies(t *testing.T) map[string]familyLine {
	t.Helper()
	out, path, last := map[string]familyLine{}, "", ""
	for _, line := range readLines(t, "testdata/metrics/berth.txt") {
		m, help := ownLine.FindStringSubmatch(line), helpLine.FindStringSubmatch(line)
		switch {
		case strings.HasPrefix(line, "# "):
			path = line[2:]
		case m != nil:
			last = path + " " + m[1]
			out[last] = familyLine{m[1], path, "", m[3], sortedLabels(m[2]), m[4]}
		case help != nil:
			f := out[last]
			f.stability = help[1]
			out[last] = f
		default:
			t.Fatalf("not understood: %q", line)
		}
	}
	for _, line := range readLines(t, "../internal/observe/metrics/testdata/names.txt") {
		if strings.HasPrefix(line, "# ") {
			path = line[2:]
			continue
		}
		m := nameLine.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("not understood: %q", line)
		}
		key, f := path+" "+m[1], familyLine{m[1], path, "", m[2], sortedLabels(m[3]), ""}
		if had, ok := out[key]; ok {
			had.kind = f.kind
			f = had
		}
		out[key] = f
	}
	return out
}

// verdict is a row of coverage.txt: works, or why not.
type verdict struct{ name, none string }

func metricVerdicts(t *testing.T) (out []verdict) {
	t.Helper()
	for _, line := range readLines(t, "testdata/metrics/coverage.txt")[1:] {
		words := strings.Fields(line)
		switch {
		case len(words) == 2 && words[1] == "works":
			out = append(out, verdict{name: words[0]})
		case len(words) > 3 && words[1] == "none":
			out = append(out, verdict{words[0], strings.Join(words[2:], " ")})
		default:
			t.Fatalf("%q is no name and verdict", line)
		}
	}
	return out
}

// namePart is what names of families are made of.
var namePart = regexp.MustCompile(`[a-z][a-z0-9_]+`)

// namedInTests are the words of all tests, and of the stories that they tell, but for the lists of
// families.
func namedInTests(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path == "../agent/metrics_test.go" || !strings.HasSuffix(path, "_test.go") && filepath.Ext(path) != ".txtar" {
			return err
		}
		content, err := os.ReadFile(path)
		for _, word := range namePart.FindAllString(string(content), -1) {
			all[word] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Each family of the kubelet works, with its labels, type, stability and buckets and a test that
// reads it, or is told of with the reason why it is not there.
func TestCoverageOfMetrics(t *testing.T) {
	verdicts, own, tests := metricVerdicts(t), ownFamilies(t), namedInTests(t)
	var names, rows []string
	published := map[string]familyLine{}
	for _, f := range publishedFamilies(t) {
		names, published[f.name] = append(names, f.name), f
	}
	for _, v := range verdicts {
		rows = append(rows, v.name)
	}
	if diff := gocmp.Diff(names, rows); diff != "" {
		t.Fatalf("each has one row, in order (-without a row, +without a metric):\n%s", diff)
	}
	for _, v := range verdicts {
		want := published[v.name]
		got, there := own[want.path+" "+v.name]
		switch {
		case v.none != "" && there:
			t.Errorf("%s: it is there", v.name)
		case v.none != "":
			if of, ok := strings.CutPrefix(v.none, "as "); ok && (published[of].name == "" || strings.Contains(of, " ")) {
				t.Errorf("%s: %q is no other metric", v.name, of)
			}
		case !there:
			t.Errorf("%s: it is not there", v.name)
		default:
			if want.kind == "custom" || got.kind == "" {
				want.kind, got.kind = "", ""
			}
			if want.buckets == "" || got.buckets == "" {
				want.buckets, got.buckets = "", ""
			}
			if got.stability == "" { // of a list without help
				want.stability = ""
			}
			if want != got {
				t.Errorf("%s: %+v, want %+v", v.name, got, want)
			}
			if !tests[v.name] && !tests[v.name+"_count"] && !tests[v.name+"_sum"] {
				t.Errorf("%s: no test reads it", v.name)
			}
		}
	}
}

// The page says what the lists say.
func TestMetricsDoc(t *testing.T) {
	content, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	head, old, ok := strings.Cut(string(content), metricsBegin)
	if !ok {
		t.Fatalf("%s has no line %q", metricsPage, metricsBegin)
	}
	want := metricTables(t)
	if *update {
		if err := os.WriteFile(metricsPage, []byte(head+metricsBegin+want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := gocmp.Diff(want, old); diff != "" {
		t.Errorf("run: go test ./agent -run TestMetricsDoc -update\n(-want +got):\n%s", diff)
	}
}

// metricTables are the tables of the page.
func metricTables(t *testing.T) string {
	t.Helper()
	var shown, none strings.Builder
	own, published, missing := ownFamilies(t), map[string]familyLine{}, 0
	for _, f := range publishedFamilies(t) {
		published[f.path+" "+f.name] = f
	}
	path := ""
	for _, key := range slices.Sorted(maps.Keys(own)) {
		f := own[key]
		if f.path != path {
			path = f.path
			fmt.Fprintf(&shown, "\n## %s\n\n| family | type | labels | |\n|---|---|---|---|\n", path)
		}
		p, ofKubelet := published[key]
		note := p.stability
		if !ofKubelet {
			note = "not in the list"
		}
		kind := f.kind
		if kind == "" { // what the test of the families does not show
			kind = "gauge"
		}
		fmt.Fprintf(&shown, "| `%s` | %s | %s | %s |\n", f.name, kind, strings.Trim(f.labels, "{}"), note)
	}
	for _, v := range metricVerdicts(t) {
		if v.none != "" {
			missing++
			fmt.Fprintf(&none, "| `%s` | %s |\n", v.name, v.none)
		}
	}
	return fmt.Sprintf("\nOf %d families of the kubelet %d are there and %d are not.\n%s\n## Not there\n\n| family | why |\n|---|---|\n%s",
		len(published), len(published)-missing, missing, shown.String(), none.String())
}
