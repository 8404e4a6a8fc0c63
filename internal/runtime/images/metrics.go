package images

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// newCollected registers the counter of a Collector; nobody scrapes it if r is nil.
func newCollected(r prometheus.Registerer) *prometheus.CounterVec {
	return promauto.With(r).NewCounterVec(prometheus.CounterOpts{
		Name: "kubelet_image_garbage_collected_total",
		Help: "[ALPHA] Total number of images garbage collected by the kubelet, whether through disk usage or image age.",
	}, []string{"reason"})
}

// pluginMetrics count the runs of credential provider plugins, which are the node's own, and few.
type pluginMetrics struct {
	errors   *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// newPluginMetrics registers the families of Providers; nobody scrapes them if r is nil.
func newPluginMetrics(r prometheus.Registerer) *pluginMetrics {
	f := promauto.With(r)
	return &pluginMetrics{
		errors: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_credential_provider_plugin_errors_total",
			Help: "[ALPHA] Number of errors from credential provider plugin",
		}, []string{"plugin_name"}),
		duration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_credential_provider_plugin_duration",
			Help: "[ALPHA] Duration of execution in seconds for credential provider plugin",
		}, []string{"plugin_name"}),
	}
}

func (m *pluginMetrics) ran(plugin string, took time.Duration, err error) {
	m.duration.WithLabelValues(plugin).Observe(took.Seconds())
	if err != nil {
		m.errors.WithLabelValues(plugin).Inc()
	}
}
