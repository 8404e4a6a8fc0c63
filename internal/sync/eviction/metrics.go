package eviction

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	evictions *prometheus.CounterVec
	age       *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	return &metrics{
		evictions: promauto.With(r).NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_evictions", Help: "[ALPHA] Cumulative number of pod evictions by eviction signal",
		}, []string{"eviction_signal"}),
		age: promauto.With(r).NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_eviction_stats_age_seconds", Buckets: prometheus.DefBuckets,
			Help: "[ALPHA] Time between when stats are collected, and when pod is evicted based on those stats by eviction signal",
		}, []string{"eviction_signal"}),
	}
}
