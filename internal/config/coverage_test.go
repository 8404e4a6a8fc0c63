package config

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// The verdicts of rows of testdata/coverage.
const (
	// worksVerdict: as with the kubelet. The row names folder and test that show it; what is behind
	// a slash is a story of the folder's testdata.
	worksVerdict = "works"
	// toldVerdict: not as with the kubelet, which is told at the start. The row has a configuration
	// that asks for it, or "field" and the field that it goes with.
	toldVerdict = "told"
	// noneVerdict: the kubelet does nothing for it either. The row says why.
	noneVerdict = "none"
	// asVerdict: a flag that stands for a field. The row names the field.
	asVerdict = "as"
)

// row is one line of a table: what becomes of a field, a flag or a gate.
type row struct{ name, verdict, evidence string }

// readRows reads a table of testdata/coverage, which is sorted and says each thing once.
func readRows(t *testing.T, table string) []row {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata/coverage", table))
	if err != nil {
		t.Fatal(err)
	}
	var rows []row
	for n, line := range strings.Split(strings.TrimSpace(string(content)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		if len(words) < 2 {
			t.Fatalf("%s:%d: %q is no name and verdict", table, n+1, line)
		}
		rows = append(rows, row{words[0], words[1], strings.Join(words[2:], " ")})
	}
	return rows
}

// checkNames compares the names of a table with what there is.
func checkNames(t *testing.T, rows []row, want []string) {
	t.Helper()
	var got []string
	for _, r := range rows {
		got = append(got, r.name)
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("each has one row, in order (-without a row, +without a thing):\n%s", diff)
	}
}

// told is what Load says of flags and of a configuration.
func told(t *testing.T, doc document, args ...string) []string {
	t.Helper()
	doc["apiVersion"], doc["kind"] = APIVersion, Kind
	content, err := yaml.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	writeFile(t, file, content)
	k, err := Load(parsed(t, append(args, "--config="+file, "--kubeconfig=/kubeconfig")...))
	if err != nil {
		return strings.Split(strings.ReplaceAll(err.Error(), file, "FILE"), "\n")
	}
	var lines []string
	for _, w := range k.Warnings {
		lines = append(lines, strings.ReplaceAll(w, file, "FILE"))
	}
	return lines
}

// naming are those of lines that name a path; for a field of a list's elements, the list will do.
func naming(lines []string, path string) []string {
	list, _, _ := strings.Cut(path, "[]")
	named := regexp.MustCompile(`(^|[ ,])` + regexp.QuoteMeta(list) + `($|[ :.\[])`)
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !named.MatchString(line) })
}

// parseDocument reads the configuration of a row.
func parseDocument(t *testing.T, text string) document {
	t.Helper()
	doc := document{}
	if err := yaml.UnmarshalStrict([]byte(text), &doc); err != nil || len(doc) == 0 {
		t.Fatalf("%q is no part of a configuration, such as {podCIDR: 10.1.0.0/24}: %v", text, err)
	}
	return doc
}

// Each field of the published type has its row, and each row is true: what works is read by the
// agent and has a test, what does not is told with its path.
func TestCoverageOfFields(t *testing.T) {
	rows := readRows(t, "fields.txt")
	checkNames(t, rows, publishedLeaves())
	read := readProduct(t)
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			switch r.verdict {
			case worksVerdict:
				checkTest(t, r.evidence)
				if _, elsewhere := readElsewhere[r.name]; !elsewhere && !read.selectors[goName(t, r.name)] {
					t.Error("nothing of the agent reads it")
				}
			case toldVerdict:
				checkTold(t, r.name, told(t, parseDocument(t, r.evidence)))
			case noneVerdict:
				checkReason(t, r)
			default:
				t.Errorf("%q is no verdict of a field", r.verdict)
			}
			deviates := slices.ContainsFunc(deviations, func(d deviation) bool {
				return slices.ContainsFunc(slices.Concat(d.inForce, d.fields), func(path string) bool {
					return len(naming([]string{r.name}, path)) > 0
				})
			})
			if deviates && r.verdict != toldVerdict {
				t.Error("heed.go tells of it: its verdict is told")
			}
		})
	}
}

// readElsewhere are the fields that work although no selector of the product beyond defaults and
// validation reads them.
var readElsewhere = map[string]string{
	"apiVersion":                   "file.go, of the document",
	"kind":                         "file.go, of the document",
	"kernelMemcgNotification":      "the kernel always tells",
	"mergeDefaultEvictionSettings": "defaults.go",
	"logging.flushFrequency":       "no message waits",
}

func checkTold(t *testing.T, path string, lines []string) {
	t.Helper()
	if len(naming(lines, path)) == 0 {
		t.Errorf("nothing names %s; what is told:\n%s", path, strings.Join(lines, "\n"))
	}
}

func checkReason(t *testing.T, r row) {
	t.Helper()
	if len(strings.Fields(r.evidence)) < 2 {
		t.Errorf("%q is no reason", r.evidence)
	}
}

// Each flag has its row: that of its field, or its own.
func TestCoverageOfFlags(t *testing.T) {
	rows := readRows(t, "flags.txt")
	all := NewFlags().All()
	var names []string
	for _, f := range all {
		names = append(names, f.Name)
	}
	checkNames(t, rows, names)
	fields := publishedLeaves()
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			at := slices.IndexFunc(all, func(f *Flag) bool { return f.Name == r.name })
			if at < 0 {
				return
			}
			switch f := all[at]; r.verdict {
			case worksVerdict:
				checkTest(t, r.evidence)
				if f.Field != "" || f.Group == NoEffectGroup {
					t.Errorf("the field %q, in the group %s: it is no flag that works of itself", f.Field, f.Group)
				}
			case toldVerdict:
				checkTold(t, "--"+r.name, told(t, document{}, fmt.Sprintf("--%s=%s", r.name, r.evidence)))
			case asVerdict:
				if f.Field != r.evidence || f.Group == NoEffectGroup {
					t.Errorf("it stands for %q, in the group %s", f.Field, f.Group)
				}
				if !slices.ContainsFunc(fields, func(path string) bool { return len(naming([]string{path}, f.Field)) > 0 }) {
					t.Errorf("there is no field %s", f.Field)
				}
			default:
				t.Errorf("%q is no verdict of a flag", r.verdict)
			}
		})
	}
}
