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
	streamsOpened, streamsFailed   prometheus.Counter
	streamLatency                  prometheus.Histogram

	lastRelist time.Time // the beginning; used only by the relisting goroutine
}

// newMetrics registers the metrics of this package; if r is nil, they are not registered.
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
		streamsOpened: f.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_evented_pleg_connection_success_count",
			Help: "[ALPHA] The number of times a streaming client was obtained to receive CRI Events.",
		}),
		streamsFailed: f.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_evented_pleg_connection_error_count",
			Help: "[ALPHA] The number of errors encountered during the establishment of streaming connection with the CRI runtime.",
		}),
		streamLatency: f.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_evented_pleg_connection_latency_seconds",
			Help: "[ALPHA] The latency of streaming connection with the CRI runtime, measured in seconds.",
		}),
	}
}

// streamOpened counts an opened event stream and its latency.
func (m *metrics) streamOpened(took time.Duration) {
	m.streamsOpened.Inc()
	m.streamLatency.Observe(took.Seconds())
}

func (m *metrics) relisted(began time.Time) {
	m.relistDuration.Observe(time.Since(began).Seconds())
	if interval := began.Sub(m.lastRelist); !m.lastRelist.IsZero() && interval > 0 {
		m.relistInterval.Observe(interval.Seconds())
	}
	m.lastRelist = began
	m.lastSeen.SetToCurrentTime()
}
