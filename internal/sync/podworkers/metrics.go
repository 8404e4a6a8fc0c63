package podworkers

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	duration      *prometheus.HistogramVec
	startDuration prometheus.Histogram
}

// newMetrics registers the families of this package; nobody scrapes them if r is nil.
func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	return &metrics{
		duration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_pod_worker_duration_seconds",
			Help: "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, sync, terminating or terminated",
		}, []string{"operation_type"}),
		startDuration: f.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pod_worker_start_duration_seconds",
			Help: "[ALPHA] Duration in seconds from kubelet seeing a pod to starting a worker.",
		}),
	}
}
