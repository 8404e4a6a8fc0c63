package admission

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/observe/metrics/metricstest"
)

// A pod that is refused counts under its reason; what others may make up is one reason.
func TestMetrics(t *testing.T) {
	b, registry := newBench(t), prometheus.NewRegistry()
	b.metrics = newMetrics(registry)
	if v := b.admit(t, newPod("large", requests("cpu", "9"))); v.Admitted {
		t.Fatal("admitted")
	}
	b.metrics.rejected("made up")
	b.metrics.preempted("example.com/gpu")
	want := map[string]float64{
		`kubelet_admission_rejections_total{reason="OutOfcpu"}`: 1, `kubelet_admission_rejections_total{reason="Other"}`: 1,
		`kubelet_preemptions{preemption_signal="other"}`: 1,
	}
	if diff := cmp.Diff(want, metricstest.Values(t, registry)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
