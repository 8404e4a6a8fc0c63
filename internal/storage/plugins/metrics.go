package plugins

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// The states of a plugin's socket: it exists, and its plugin is registered.
const (
	desiredState = "desired_state_of_world"
	actualState  = "actual_state_of_world"
)

type metrics struct{ plugins *prometheus.GaugeVec }

// newMetrics creates the metrics of this package; if r is nil, they are not registered.
func newMetrics(r prometheus.Registerer) *metrics {
	return &metrics{plugins: promauto.With(r).NewGaugeVec(prometheus.GaugeOpts{
		Name: "plugin_manager_total_plugins", Help: "[ALPHA] Number of plugins in Plugin Manager",
	}, []string{"socket_path", "state"})}
}

// is records that the socket has the state, isNot that it does not.
func (m *metrics) is(path, state string)    { m.plugins.WithLabelValues(path, state).Set(1) }
func (m *metrics) isNot(path, state string) { m.plugins.DeleteLabelValues(path, state) }
