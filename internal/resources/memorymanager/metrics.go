package memorymanager

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct{ requests, errors prometheus.Counter }

func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	return &metrics{
		requests: f.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_memory_manager_pinning_requests_total",
			Help: "[ALPHA] The number of memory pages allocations which required pinning.",
		}),
		errors: f.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_memory_manager_pinning_errors_total",
			Help: "[ALPHA] The number of memory pages allocations which required pinning that failed.",
		}),
	}
}
