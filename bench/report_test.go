package main

import (
	"strings"
	"testing"
)

// A figure that is below its own noise is neither good nor bad.
func TestLostFiguresAreNotJudged(t *testing.T) {
	const change = "CPU of one manifest's change"
	for _, tt := range []struct {
		name                string
		small, large, noise float64
		want                string
	}{
		{"flat", 10, 11, 2, "| 1.2 × | 1.1 × | holds |"},
		{"steep", 10, 20, 2, "| 1.2 × | 2 × | **does not hold** |"},
		{"less than nothing", 10, -5, 2, "| 1.2 × | -0.5 × | below its noise, not judged |"},
		{"noisy", 10, 30, 30, "| 1.2 × | 3 × | below its noise, not judged |"},
		{"of unknown noise", 10, 11, 0, "| 1.2 × | 1.1 × | holds |"},
	} {
		r := newReport(options{pods: 100, scale: "100,5000"})
		r.add("scale", "100 pods: "+change, "ms", tt.small)
		r.add("scale", "5000 pods: "+change, "ms", tt.large)
		r.Figures[1].Noise = tt.noise
		r.computeGoals()
		if got := r.markdown(); !strings.Contains(got, tt.want) {
			t.Errorf("%s: want %q in\n%s", tt.name, tt.want, got)
		}
	}
}
