package cgroups

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct{ duration *prometheus.HistogramVec }

// newMetrics registers the family of this package; nobody scrapes it if r is nil.
func newMetrics(r prometheus.Registerer) *metrics {
	return &metrics{duration: promauto.With(r).NewHistogramVec(prometheus.HistogramOpts{
		Name: "kubelet_cgroup_manager_duration_seconds",
		Help: "[ALPHA] Duration in seconds for cgroup manager operations. Broken down by method.",
	}, []string{"operation_type"})}
}

// operation is what is done with one cgroup, or with those of QoS classes.
type operation string

const (
	create  operation = "create"
	update  operation = "update"
	destroy operation = "destroy"
)

// operated counts an operation that has ended, well or not.
func (m *metrics) operated(o operation, began time.Time) {
	m.duration.WithLabelValues(string(o)).Observe(time.Since(began).Seconds())
}
