package config

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"berth/internal/config/coveragetest"
)

// readRows reads a table of testdata/coverage.
func readRows(t *testing.T, table string) []coveragetest.Row {
	t.Helper()
	return coveragetest.Read(t, filepath.Join("testdata/coverage", table))
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
	coveragetest.CheckNames(t, rows, publishedLeaves())
	read := readProduct(t)
	for _, r := range rows {
		t.Run(r.Name, func(t *testing.T) {
			switch r.Verdict {
			case coveragetest.Works:
				coveragetest.CheckTest(t, r.Evidence)
				if _, elsewhere := readElsewhere[r.Name]; !elsewhere && !read.selectors[goName(t, r.Name)] {
					t.Error("nothing of the agent reads it")
				}
			case coveragetest.Told:
				checkTold(t, r.Name, told(t, parseDocument(t, r.Evidence)))
			case coveragetest.None:
				coveragetest.CheckReason(t, r)
			default:
				t.Errorf("%q is no verdict of a field", r.Verdict)
			}
			deviates := slices.ContainsFunc(deviations, func(d deviation) bool {
				return slices.ContainsFunc(d.fields, func(path string) bool {
					return len(naming([]string{r.Name}, path)) > 0
				})
			})
			if deviates && r.Verdict != coveragetest.Told {
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

// Each flag has its row: that of its field, or its own.
func TestCoverageOfFlags(t *testing.T) {
	rows := readRows(t, "flags.txt")
	all := NewFlags().All()
	var names []string
	for _, f := range all {
		names = append(names, f.Name)
	}
	coveragetest.CheckNames(t, rows, names)
	fields := publishedLeaves()
	for _, r := range rows {
		t.Run(r.Name, func(t *testing.T) {
			at := slices.IndexFunc(all, func(f *Flag) bool { return f.Name == r.Name })
			if at < 0 {
				return
			}
			switch f := all[at]; r.Verdict {
			case coveragetest.Works:
				coveragetest.CheckTest(t, r.Evidence)
				if f.Field != "" || f.Group == NoEffectGroup {
					t.Errorf("the field %q, in the group %s: it is no flag that works of itself", f.Field, f.Group)
				}
			case coveragetest.Told:
				checkTold(t, "--"+r.Name, told(t, document{}, fmt.Sprintf("--%s=%s", r.Name, r.Evidence)))
			case coveragetest.As:
				if f.Field != r.Evidence || f.Group == NoEffectGroup {
					t.Errorf("it stands for %q, in the group %s", f.Field, f.Group)
				}
				if !slices.ContainsFunc(fields, func(path string) bool { return len(naming([]string{path}, f.Field)) > 0 }) {
					t.Errorf("there is no field %s", f.Field)
				}
			default:
				t.Errorf("%q is no verdict of a flag", r.Verdict)
			}
		})
	}
}
