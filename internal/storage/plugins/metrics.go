package plugins

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// The states of a plugin's socket: it is there, and what listens on it is registered.
const (
	desiredState = "desired_state_of_world"
	actualState  = "actual_state_of_world"
)

type metrics struct{ plugins *prometheus.GaugeVec }

// newMetrics registers the family of this package; nobody scrapes it if r is nil.
func newMetrics(r prometheus.Registerer) *metrics {
	return &metrics{plugins: promauto.With(r).NewGaugeVec(prometheus.GaugeOpts{
		Name: "plugin_manager_total_plugins", Help: "[ALPHA] Number of plugins in Plugin Manager",
	}, []string{"socket_path", "state"})}
}

// is notes that the socket has come to the state, isNot that it has left it.
func (m *metrics) is(path, state string)    { m.plugins.WithLabelValues(path, state).Set(1) }
func (m *metrics) isNot(path, state string) { m.plugins.DeleteLabelValues(path, state) }
