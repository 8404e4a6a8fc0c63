//go:build e2e

package e2e

import (
	"bufio"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// reference is what docs/metrics-reference.md lists: type and labels by path and family.
type reference map[string]map[string][2]string

var (
	referenceRow = regexp.MustCompile("^\\| `([a-z0-9_]+)` \\| ([a-z]+) \\| ([A-Za-z0-9_,]*) \\| ")
	typeLine     = regexp.MustCompile(`^# TYPE (\S+) (\S+)$`)
	sampleLine   = regexp.MustCompile(`^([a-z0-9_]+)(?:\{(.*)\})? [^ ]+( \d+)?$`)
	labelName    = regexp.MustCompile(`([A-Za-z0-9_]+)="(?:[^"\\]|\\.)*"`)
)

func readReference(t *testing.T) reference {
	t.Helper()
	f, err := os.Open("../../docs/metrics-reference.md")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out, path := reference{}, ""
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "## "); ok {
			path = rest
			out[path] = map[string][2]string{}
		}
		if m := referenceRow.FindStringSubmatch(s.Text()); m != nil && strings.HasPrefix(path, "/") {
			out[path][m[1]] = [2]string{m[2], m[3]}
		}
	}
	return out
}

// A node shows what the list of all metrics has, under these names and with these labels, and
// nothing else. What has no labels is always there.
func TestClusterMetricsReference(t *testing.T) {
	c := newCluster(t)
	c.startMember()
	p := c.helloPod("web", "serve")
	c.create(p)
	c.awaitAPIReady("web")
	for path, listed := range readReference(t) {
		if !strings.HasPrefix(path, "/") {
			continue
		}
		text := c.kubectl("get", "--raw", "/api/v1/nodes/"+c.name+"/proxy"+path)
		seen, kinds := map[string]bool{}, map[string]string{}
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			if m := typeLine.FindStringSubmatch(line); m != nil {
				kinds[m[1]] = m[2]
			}
			m := sampleLine.FindStringSubmatch(line)
			if m == nil {
				if !strings.HasPrefix(line, "#") {
					t.Errorf("%s: not understood: %q", path, line)
				}
				continue
			}
			family := familyOf(m[1], kinds)
			if path == "/metrics" && (strings.HasPrefix(family, "go_") || strings.HasPrefix(family, "process_")) || seen[family] && listed[family][0] == "" {
				continue
			}
			seen[family] = true
			want, ok := listed[family]
			if !ok {
				t.Errorf("%s: %s is not listed", path, family)
				continue
			}
			if kinds[family] != want[0] {
				t.Errorf("%s: %s is a %s, and listed as %s", path, family, kinds[family], want[0])
			}
			var labels []string
			for _, l := range labelName.FindAllStringSubmatch(m[2], -1) {
				if l[1] != "le" || want[0] != "histogram" {
					labels = append(labels, l[1])
				}
			}
			slices.Sort(labels)
			if got := strings.Join(labels, ","); got != want[1] {
				t.Errorf("%s: %s has the labels %s, and is listed with %s", path, family, got, want[1])
			}
		}
		for family, of := range listed {
			if of[1] == "" && !seen[family] && family != "scrape_error" { // which is hidden
				t.Errorf("%s: %s is listed, and not shown", path, family)
			}
		}
	}
	own := c.kubectl("get", "--raw", "/api/v1/nodes/"+c.name+"/proxy/metrics")
	if v := valueOf(own, `kubelet_cgroup_manager_duration_seconds_count{operation_type="create"}`); v == "" || v == "0" {
		t.Errorf("%q cgroups were made", v)
	}
	if v := valueOf(own, "kubelet_cgroup_version"); v != "1" && v != "2" {
		t.Errorf("kubelet_cgroup_version is %q", v)
	}
}

// familyOf returns the family of a sample: that of a histogram has others' names.
func familyOf(sample string, kinds map[string]string) string {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if name, ok := strings.CutSuffix(sample, suffix); ok && (kinds[name] == "histogram" || kinds[name] == "summary") {
			return name
		}
	}
	return sample
}
