package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// startStep is a step of the startup of a new Node.
type startStep int

// The steps in order: about to be registered, created at the API server, reported as ready.
const (
	stepRegistering startStep = iota
	stepRegistered
	stepReady
	startSteps
)

// metrics measure the startup of a new Node. A Node that existed before has no samples: the
// families are vectors without labels, so that they export nothing before the value is known. They
// are owned by the goroutine that reports.
type metrics struct {
	booted, began time.Time             // of the machine and of the agent; zero: not known
	at            [startSteps]time.Time // zero: not yet

	preKubelet, preRegistration, registration, postRegistration, total *prometheus.GaugeVec
}

// newMetrics creates the metrics of this package; if cfg.Metrics is nil, they are not registered.
func newMetrics(cfg *Config) *metrics {
	f := promauto.With(cfg.Metrics)
	gauge := func(name, help string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, nil)
	}
	return &metrics{
		booted: cfg.Booted, began: cfg.Started,
		preKubelet: gauge("kubelet_node_startup_pre_kubelet_duration_seconds",
			"[ALPHA] Duration in seconds of node startup before kubelet starts."),
		preRegistration: gauge("kubelet_node_startup_pre_registration_duration_seconds",
			"[ALPHA] Duration in seconds of node startup before registration."),
		registration: gauge("kubelet_node_startup_registration_duration_seconds",
			"[ALPHA] Duration in seconds of node startup during registration."),
		postRegistration: gauge("kubelet_node_startup_post_registration_duration_seconds",
			"[ALPHA] Duration in seconds of node startup after registration."),
		total: gauge("kubelet_node_startup_duration_seconds",
			"[ALPHA] Duration in seconds of node startup in total."),
	}
}

// reach records the time of the first call for a step.
func (m *metrics) reach(s startStep) {
	if !m.at[s].IsZero() {
		return
	}
	m.at[s] = time.Now()
	switch s {
	case stepRegistered:
		set(m.preKubelet, m.booted, m.began)
		set(m.preRegistration, m.began, m.at[stepRegistering])
		set(m.registration, m.at[stepRegistering], m.at[stepRegistered])
	case stepReady:
		set(m.postRegistration, m.at[stepRegistered], m.at[stepReady])
		set(m.total, m.booted, m.at[stepReady])
	}
}

// set sets the duration of a part, unless its start is not known.
func set(part *prometheus.GaugeVec, from, to time.Time) {
	if !from.IsZero() {
		part.WithLabelValues().Set(to.Sub(from).Seconds())
	}
}
