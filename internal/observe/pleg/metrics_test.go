package pleg_test

import (
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/observe/metrics/metricstest"
)

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		seen := time.Now()
		// At the start, when the stream opens, unless it opens before the first one begins, and a
		// second later.
		relists := r.fake.Calls.Count("ListPodSandbox")
		if relists < 2 || relists > 3 {
			t.Errorf("%d relists", relists)
		}
		want := map[string]float64{
			"kubelet_pleg_relist_duration_seconds_count": float64(relists), "kubelet_pleg_relist_interval_seconds_count": 1,
			"kubelet_pleg_relist_interval_seconds_sum": 1, "kubelet_pleg_pod_relist_duration_seconds_count": 0,
		}
		metricstest.Expect(t, r.registry, want)
		if got := metricstest.Values(t, r.registry)["kubelet_pleg_last_seen_seconds"]; got != float64(seen.Add(-2*time.Second).Unix()) {
			t.Errorf("last seen at %v", got)
		}
		r.run(t, "a", "main")
		if _, err := r.Observe(t.Context(), "a", r.BeginReading()); err != nil {
			t.Fatal(err)
		}
		if reads := metricstest.Values(t, r.registry)["kubelet_pleg_pod_relist_duration_seconds_count"]; reads == 0 {
			t.Error("a reading was not counted")
		}
		metricstest.Expect(t, r.registry, map[string]float64{
			"kubelet_evented_pleg_connection_success_count": 1, "kubelet_evented_pleg_connection_latency_seconds_count": 1, "kubelet_evented_pleg_connection_error_count": 0,
		})
	})
}

// A stream that breaks is opened again, and counts again.
func TestMetricsOfStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.fake.Down()
		settle()
		r.fake.Serve()
		settle()
		metricstest.Expect(t, r.registry, map[string]float64{
			"kubelet_evented_pleg_connection_success_count": 2, "kubelet_evented_pleg_connection_latency_seconds_count": 2,
		})
	})
}
