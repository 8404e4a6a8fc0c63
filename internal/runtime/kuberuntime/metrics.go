package kuberuntime

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	v1 "k8s.io/api/core/v1"
)

type metrics struct{ startErrors *prometheus.CounterVec }

// newMetrics registers the family of this package; nobody scrapes it if r is nil.
func newMetrics(r prometheus.Registerer) *metrics {
	return &metrics{startErrors: promauto.With(r).NewCounterVec(prometheus.CounterOpts{
		Name: "kubelet_started_containers_errors_total",
		Help: "[ALPHA] Cumulative number of errors when starting containers",
	}, []string{"container_type", "code"})}
}

// startFailed counts a container that could not be started, by the reason in its status.
func (m *metrics) startFailed(p *v1.Pod, container, reason string) {
	m.startErrors.WithLabelValues(containerType(p, container), reason).Inc()
}

// containerType returns the kubelet's word for the kind of a container.
func containerType(p *v1.Pod, name string) string {
	switch {
	case slices.ContainsFunc(p.Spec.InitContainers, func(c v1.Container) bool { return c.Name == name }):
		return "init_container"
	case slices.ContainsFunc(p.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return c.Name == name }):
		return "ephemeral_container"
	}
	return "container"
}
