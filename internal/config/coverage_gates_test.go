package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"berth/internal/config/coveragetest"
)

// publishedGates reads the feature gates of Kubernetes 1.36.3, which all its components know. The
// list is what kube-apiserver tells of itself: the names, stages and values of
// kubernetes_feature_enabled at its /metrics (bin/controlplane up, bin/kubectl get --raw /metrics).
func publishedGates(t *testing.T) map[string]gate {
	t.Helper()
	out := map[string]gate{}
	for _, r := range readRows(t, "published.gates") {
		out[r.Name] = gate{on: r.Evidence == "on", stage: r.Verdict}
	}
	return out
}

// The gates that the agent knows are published ones, with their defaults.
func TestGatesAreThePublishedOnes(t *testing.T) {
	published := publishedGates(t)
	for name, own := range gates {
		if want, ok := published[name]; !ok || own != want {
			t.Errorf("%s: %+v, want %+v, published %t", name, own, want, ok)
		}
	}
	for _, name := range slices.Concat(unheededGates, declaredGates, freeGates) {
		if _, ok := gates[name]; !ok {
			t.Errorf("%s has no stage and default", name)
		}
	}
}

// Each published gate has its row, and each row is true. Whatever a gate is, to set it to other
// than its default does what it says, or is told.
func TestCoverageOfGates(t *testing.T) {
	rows, published, read := readRows(t, "gates.txt"), publishedGates(t), readProduct(t)
	var names []string
	for name := range published {
		names = append(names, name)
	}
	coveragetest.CheckNames(t, rows, names)
	fields := readRows(t, "fields.txt")
	for _, r := range rows {
		t.Run(r.Name, func(t *testing.T) {
			g := published[r.Name]
			path := fmt.Sprintf("featureGates[%s]", r.Name)
			lines := naming(told(t, document{"featureGates": document{r.Name: !g.on}}), path)
			asked := read.gates[r.Name] || slices.Contains(freeGates, r.Name)
			if all := allOfStage[g.stage]; r.Name == allAlpha || r.Name == allBeta {
				asked = true
			} else if !asked && all != "" && r.Verdict != coveragetest.None {
				checkStage(t, all, r.Name, !g.on)
			}
			if !asked && len(lines) == 0 {
				t.Errorf("set to %t, it does nothing, and nobody is told", !g.on)
			}
			switch field, ofField := strings.CutPrefix(r.Evidence, "field "); r.Verdict {
			case coveragetest.Works:
				coveragetest.CheckTest(t, r.Evidence)
			case coveragetest.Told:
				if !ofField {
					checkTold(t, path, lines)
				} else if !slices.ContainsFunc(fields, func(f coveragetest.Row) bool { return f.Name == field && f.Verdict == coveragetest.Told }) {
					t.Errorf("of the field %s nothing is told", field)
				}
			case coveragetest.None:
				coveragetest.CheckReason(t, r)
			default:
				t.Errorf("%q is no verdict of a gate", r.Verdict)
			}
		})
	}
}

// checkStage checks that a gate is named when all of its stage are set to a value that it cannot
// have.
func checkStage(t *testing.T, all, name string, on bool) {
	t.Helper()
	for _, line := range naming(told(t, document{"featureGates": document{all: on}}), "featureGates["+all+"]") {
		_, named, _ := strings.Cut(line, "here: ")
		if slices.Contains(strings.Split(named, ", "), name) {
			return
		}
	}
	t.Errorf("%s=%t does not name it", all, on)
}
