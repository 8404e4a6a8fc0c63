package nodeshutdown

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct{ start, end prometheus.Gauge }

func newMetrics(r prometheus.Registerer) *metrics {
	return &metrics{
		start: promauto.With(r).NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_graceful_shutdown_start_time_seconds",
			Help: "[ALPHA] Last graceful shutdown start time since unix epoch in seconds",
		}),
		end: promauto.With(r).NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_graceful_shutdown_end_time_seconds",
			Help: "[ALPHA] Last graceful shutdown end time since unix epoch in seconds",
		}),
	}
}

// set sets the times of the last shutdown; 0 if unknown.
func (m *metrics) set(p past) {
	m.start.Set(epoch(p.Start))
	m.end.Set(epoch(p.End))
}

func epoch(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}
