package kuberuntime

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod/lifecycle"
)

type metrics struct {
	startErrors                                           *prometheus.CounterVec
	imageVolumes, imageVolumesMounted, imageVolumesFailed prometheus.Counter
}

// newMetrics creates the metrics of this package; if r is nil, they are not registered.
func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	return &metrics{
		startErrors: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_started_containers_errors_total",
			Help: "[ALPHA] Cumulative number of errors when starting containers",
		}, []string{"container_type", "code"}),
		imageVolumes: f.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_image_volume_requested_total", Help: "[BETA] Number of requested image volumes.",
		}),
		imageVolumesMounted: f.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_image_volume_mounted_succeed_total", Help: "[BETA] Number of successful image volume mounts.",
		}),
		imageVolumesFailed: f.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_image_volume_mounted_errors_total", Help: "[BETA] Number of failed image volume mounts.",
		}),
	}
}

// imagesUsed counts a container's image volumes as mounted or failed.
func (m *metrics) imagesUsed(volumes int, failed *lifecycle.StartError) {
	m.imageVolumes.Add(float64(volumes))
	if failed != nil {
		m.imageVolumesFailed.Add(float64(volumes))
		return
	}
	m.imageVolumesMounted.Add(float64(volumes))
}

// startFailed counts a container that could not be started, by the reason in its status.
func (m *metrics) startFailed(p *v1.Pod, container, reason string) {
	m.startErrors.WithLabelValues(containerType(p, container), reason).Inc()
}

// containerType returns the kubelet's label for the type of a container.
func containerType(p *v1.Pod, name string) string {
	switch {
	case slices.ContainsFunc(p.Spec.InitContainers, func(c v1.Container) bool { return c.Name == name }):
		return "init_container"
	case slices.ContainsFunc(p.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return c.Name == name }):
		return "ephemeral_container"
	}
	return "container"
}
