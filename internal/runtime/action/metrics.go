package action

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct{ httpFallbacks, earlySleeps prometheus.Counter }

// newMetrics creates the metrics of this package; if r is nil, they are not registered.
func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	return &metrics{
		httpFallbacks: f.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_lifecycle_handler_http_fallbacks_total",
			Help: "[ALPHA] The number of times lifecycle handlers successfully fell back to http from https.",
		}),
		earlySleeps: f.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_sleep_action_terminated_early_total",
			Help: "[ALPHA] The number of times lifecycle sleep handler got terminated before it finishes",
		}),
	}
}
