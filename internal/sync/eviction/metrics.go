package eviction

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct{ evictions *prometheus.CounterVec }

// newMetrics registers the family of this package; nobody scrapes it if r is nil.
func newMetrics(r prometheus.Registerer) *metrics {
	return &metrics{evictions: promauto.With(r).NewCounterVec(prometheus.CounterOpts{
		Name: "kubelet_evictions", Help: "[ALPHA] Cumulative number of pod evictions by eviction signal",
	}, []string{"eviction_signal"})}
}
