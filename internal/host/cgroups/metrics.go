package cgroups

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct{ duration *prometheus.HistogramVec }

// newMetrics registers the metric of this package. If r is nil, it is not registered.
func newMetrics(r prometheus.Registerer) *metrics {
	return &metrics{duration: promauto.With(r).NewHistogramVec(prometheus.HistogramOpts{
		Name: "kubelet_cgroup_manager_duration_seconds",
		Help: "[ALPHA] Duration in seconds for cgroup manager operations. Broken down by method.",
	}, []string{"operation_type"})}
}

// operation is an operation on one cgroup, or on the QoS cgroups.
type operation string

const (
	create  operation = "create"
	update  operation = "update"
	destroy operation = "destroy"
)

// operated observes an operation, whether it succeeded or failed.
func (m *metrics) operated(o operation, began time.Time) {
	m.duration.WithLabelValues(string(o)).Observe(time.Since(began).Seconds())
}
