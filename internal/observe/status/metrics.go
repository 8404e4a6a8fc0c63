package status

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the metrics of a Patcher. They are exposed even without one.
type Metrics struct{ syncDuration prometheus.Histogram }

// NewMetrics registers the metrics; if r is nil, they are not registered.
func NewMetrics(r prometheus.Registerer) *Metrics {
	return &Metrics{syncDuration: promauto.With(r).NewHistogram(prometheus.HistogramOpts{
		Name: "kubelet_pod_status_sync_duration_seconds",
		Help: "[ALPHA] Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the API " +
			"is successfully updated for that pod, even if multiple intermediate changes to pod status occur.",
		Buckets: []float64{0.01, 0.05, 0.1, 0.5, 1, 5, 10, 20, 30, 45, 60},
	})}
}
