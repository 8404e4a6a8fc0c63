package devicemanager

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	registrations *prometheus.CounterVec
	allocations   *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	return &metrics{
		registrations: promauto.With(r).NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_device_plugin_registration_total",
			Help: "[ALPHA] Cumulative number of device plugin registrations. Broken down by resource name.",
		}, []string{"resource_name"}),
		allocations: promauto.With(r).NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kubelet_device_plugin_alloc_duration_seconds",
			Help:    "[ALPHA] Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
			Buckets: prometheus.DefBuckets,
		}, []string{"resource_name"}),
	}
}

func (m *metrics) registered(resource string) { m.registrations.WithLabelValues(resource).Inc() }

func (m *metrics) allocated(resource string, took time.Duration) {
	m.allocations.WithLabelValues(resource).Observe(took.Seconds())
}
