package stats

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct{ duration *prometheus.HistogramVec }

// newMetrics registers the metric of this package; if r is nil, it is not registered.
func newMetrics(r prometheus.Registerer) *metrics {
	return &metrics{duration: promauto.With(r).NewHistogramVec(prometheus.HistogramOpts{
		Name: "kubelet_volume_metric_collection_duration_seconds", Help: "[ALPHA] Duration in seconds to calculate volume stats",
	}, []string{"metric_source"})}
}

// measured counts a measurement of a volume, by source: du is a walk.
func (m *metrics) measured(source string, began time.Time) {
	m.duration.WithLabelValues(source).Observe(time.Since(began).Seconds())
}
