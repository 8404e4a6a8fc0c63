// Package metricstest reads metrics in tests.
//
// Owns: nothing.
// Reads: a registry.
// Never: is linked into the binary.
package metricstest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Values returns the samples by name and labels, in the text format: `name{label="value"}`. A
// histogram has name_count and name_sum.
func Values(t testing.TB, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			series := ""
			if labels != nil {
				series = "{" + strings.Join(labels, ",") + "}"
			}
			switch h := m.GetHistogram(); {
			case h != nil:
				out[f.GetName()+"_count"+series] = float64(h.GetSampleCount())
				out[f.GetName()+"_sum"+series] = h.GetSampleSum()
			case m.GetGauge() != nil:
				out[f.GetName()+series] = m.GetGauge().GetValue()
			default:
				out[f.GetName()+series] = m.GetCounter().GetValue()
			}
		}
	}
	return out
}

// Expect checks some of the samples; a missing one is 0.
func Expect(t testing.TB, g prometheus.Gatherer, want map[string]float64) {
	t.Helper()
	got := Values(t, g)
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %v, want %v", name, got[name], value)
		}
	}
}
