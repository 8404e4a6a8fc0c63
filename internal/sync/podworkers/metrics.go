package podworkers

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	duration      *prometheus.HistogramVec
	startDuration prometheus.Histogram
	orphaned      prometheus.Counter
	restarted     *prometheus.CounterVec
}

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
		orphaned: f.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_orphaned_runtime_pods_total",
			Help: "[ALPHA] Number of pods that have been detected in the container runtime without being already known to the pod worker. " +
				"This typically indicates the kubelet was restarted while a pod was force deleted in the API or in the local configuration, which is unusual.",
		}),
		restarted: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_restarted_pods_total",
			Help: "[ALPHA] Number of pods that have been restarted because they were deleted and recreated with the same UID while the kubelet was watching them " +
				"(common for static pods, extremely uncommon for API pods)",
		}, []string{"static"}),
	}
}

// found counts a new worker's pod that exists only in the runtime.
func (m *metrics) found(o *UpdatePodOptions) {
	if r := o.RunningPod; o.Pod == nil && r != nil && len(r.Sandboxes)+len(r.Containers) > 0 {
		m.orphaned.Inc()
	}
}

// restart counts, once, a pod that restarts after the worker has exited.
func (m *metrics) restart(w *worker) {
	if w.work.again {
		return
	}
	static := ""
	if w.static {
		static = "true"
	}
	m.restarted.WithLabelValues(static).Inc()
}
