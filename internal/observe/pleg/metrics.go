package pleg

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	relistDuration, relistInterval prometheus.Histogram
	readDuration                   prometheus.Histogram
	lastSeen                       prometheus.Gauge
}

// newMetrics registers the families of this package; nobody scrapes them if r is nil.
func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	return &metrics{
		relistDuration: f.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pleg_relist_duration_seconds", Help: "[ALPHA] Duration in seconds for relisting pods in PLEG.",
		}),
		relistInterval: f.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pleg_relist_interval_seconds", Help: "[ALPHA] Interval in seconds between relisting in PLEG.",
		}),
		readDuration: f.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pleg_pod_relist_duration_seconds",
			Help: "[ALPHA] Duration in seconds for relisting a single pod in PLEG.",
		}),
		lastSeen: f.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_pleg_last_seen_seconds", Help: "[ALPHA] Timestamp in seconds when PLEG was last seen active.",
		}),
	}
}

// relisted counts a relist that began so long after the one before, 0 for the first.
func (m *metrics) relisted(began time.Time, interval time.Duration) {
	m.relistDuration.Observe(time.Since(began).Seconds())
	if interval > 0 {
		m.relistInterval.Observe(interval.Seconds())
	}
	m.lastSeen.SetToCurrentTime()
}
