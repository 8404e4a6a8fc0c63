package main

import (
	"strings"
	"testing"
)

// What counts is the median of all times that something was measured.
func TestGoalsOfScale(t *testing.T) {
	const change = "CPU of one manifest's change"
	for _, tt := range []struct {
		name         string
		small, large []float64
		want         string
	}{
		{"flat", []float64{10}, []float64{11}, "| 1.2 × | 1.1 × | holds |"},
		{"steep", []float64{10}, []float64{20}, "| 1.2 × | 2 × | **does not hold** |"},
		{"flat but once", []float64{9, 10, 30}, []float64{50, 11, 10}, "| 1.2 × | 1.1 × | holds |"},
		{"steep but once", []float64{9, 10, 11, 30}, []float64{21, 1, 22}, "| 1.2 × | 2 × | **does not hold** |"},
	} {
		r := newReport(options{pods: 100, scale: "100,5000"})
		r.add("scale", "100 pods: "+change, "ms", tt.small...)
		r.add("scale", "5000 pods: "+change, "ms", tt.large...)
		r.computeGoals()
		if got := r.markdown(); !strings.Contains(got, tt.want) {
			t.Errorf("%s: want %q in\n%s", tt.name, tt.want, got)
		}
	}
}
