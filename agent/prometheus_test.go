package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// expressions returns those of the alert rules and of the dashboard, each under where it stands.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	read := func(file string) []byte {
		text, err := os.ReadFile("../docs/prometheus/" + file)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(read("alerts.yaml"), &rules); err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Type, Query string }
		}
	}
	if err := json.Unmarshal(read("dashboard.json"), &board); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			out["alert "+r.Alert] = r.Expr
		}
	}
	for _, p := range board.Panels {
		for i, target := range p.Targets {
			out[fmt.Sprintf("panel %q, %d", p.Title, i+1)] = target.Expr
		}
	}
	for i, v := range board.Templating.List {
		if v.Type == "query" {
			out[fmt.Sprintf("variable %d", i+1)] = v.Query
		}
	}
	return out
}

var (
	quotedText = regexp.MustCompile(`"[^"]*"`)
	rangeOf    = regexp.MustCompile(`\[\w+\]`)
	grouping   = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	selector   = regexp.MustCompile(`([a-zA-Z_:][\w:]*)\s*(?:\{([^}]*)\})?`)
	matcher    = regexp.MustCompile(`\s*([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)`)
	word       = regexp.MustCompile(`[a-zA-Z_]\w*`)
)

// functions are those of PromQL that rules and dashboard use; label_values is Grafana's.
var functions = []string{"histogram_quantile", "increase", "label_values", "rate", "sum", "time"}

// usesOf returns the metrics of an expression, each with the labels that it is asked for, and the
// labels that results are grouped by.
func usesOf(expr string) (metrics map[string][]string, groups []string) {
	expr = rangeOf.ReplaceAllString(quotedText.ReplaceAllString(expr, `""`), "")
	for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
		groups = append(groups, word.FindAllString(g[1], -1)...)
	}
	expr = grouping.ReplaceAllString(expr, "")
	if rest, label, ok := strings.Cut(expr, ", instance)"); ok && strings.HasPrefix(expr, "label_values(") {
		expr = rest + label + ")"
	}
	metrics = map[string][]string{}
	for _, s := range selector.FindAllStringSubmatch(expr, -1) {
		if slices.Contains(functions, s[1]) {
			continue
		}
		labels := metrics[s[1]]
		for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
			labels = append(labels, m[1])
		}
		metrics[s[1]] = labels
	}
	return metrics, groups
}

// families returns the labels of each series of testdata/metrics/berth.txt, of histograms those of
// _bucket, _sum and _count.
func families(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("testdata/metrics/berth.txt")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{"up": nil}
	for _, m := range regexp.MustCompile(`(?m)^(\w+)\{(.*?)\} (\w+)`).FindAllStringSubmatch(string(text), -1) {
		labels := word.FindAllString(m[2], -1)
		if m[3] != "histogram" {
			out[m[1]] = labels
			continue
		}
		out[m[1]+"_bucket"] = append([]string{"le"}, labels...)
		out[m[1]+"_sum"], out[m[1]+"_count"] = labels, labels
	}
	return out
}

// Alert rules and dashboard ask for metrics and labels that there are.
func TestPrometheusFiles(t *testing.T) {
	known := families(t)
	ofTarget := []string{"instance", "job"}
	for where, expr := range expressions(t) {
		metrics, groups := usesOf(expr)
		if len(metrics) == 0 {
			t.Errorf("%s: no metric in %s", where, expr)
		}
		for name, labels := range metrics {
			has, ok := known[name]
			if !ok {
				t.Errorf("%s: there is no metric %s", where, name)
			}
			has = append(slices.Clone(has), ofTarget...)
			for _, label := range append(labels, groups...) {
				if !slices.Contains(has, label) {
					t.Errorf("%s: %s has no label %s", where, name, label)
				}
			}
		}
	}
}

func TestUsesOf(t *testing.T) {
	for expr, want := range map[string]string{
		`a{b="c{d}", e=~"f"} > 3`: "map[a:[b e]] []",
		`histogram_quantile(0.9, sum by (le, x) (rate(a_bucket{i!="g"}[5m])))`: "map[a_bucket:[i]] [le x]",
		`time() - a / b`:              "map[a:[] b:[]] []",
		`label_values(a, instance)`:   "map[a:[]] []",
		`sum(a) without (b) + rte(c)`: "map[a:[] c:[] rte:[]] [b]",
	} {
		metrics, groups := usesOf(expr)
		if got := fmt.Sprint(metrics, " ", groups); got != want {
			t.Errorf("%s: got %s, want %s", expr, got, want)
		}
	}
}
