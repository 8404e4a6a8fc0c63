package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"berth/internal/pod/lifecycle"
)

type podCounts struct {
	start, startTotal, startSLI         prometheus.Histogram
	firstNetworkSLI                     prometheus.Gauge
	started, startedUserNamespaced      prometheus.Counter
	startedContainers, terminated       *prometheus.CounterVec
	containersPerPod                    prometheus.Histogram
	requestedResizes, infeasibleResizes *prometheus.CounterVec
	resizeDuration                      *prometheus.HistogramVec
}

// newPodCounts registers the metrics; if r is nil, they are not registered.
func newPodCounts(r prometheus.Registerer) *podCounts {
	f := promauto.With(r)
	startBuckets := []float64{
		0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600,
	}
	return &podCounts{
		start: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "kubelet_pod_start_duration_seconds",
			Help:    "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
			Buckets: startBuckets,
		}),
		startTotal: f.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pod_start_total_duration_seconds",
			Help: "[ALPHA] Duration in seconds to start a pod since creation, including time to pull images and run init containers, " +
				"measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
			Buckets: startBuckets,
		}),
		startSLI: f.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pod_start_sli_duration_seconds",
			Help: "[ALPHA] Duration in seconds to start a pod, excluding time to pull images and run init containers, " +
				"measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
			Buckets: startBuckets,
		}),
		firstNetworkSLI: f.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_first_network_pod_start_sli_duration_seconds",
			Help: "[INTERNAL] Duration in seconds to start the first network pod, excluding time to pull images and run init containers, " +
				"measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
		}),
		started: f.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_started_pods_total", Help: "[ALPHA] Cumulative number of pods started",
		}),
		startedUserNamespaced: f.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_started_user_namespaced_pods_total",
			Help: "[ALPHA] Cumulative number of pods with user namespaces started",
		}),
		startedContainers: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_started_containers_total", Help: "[ALPHA] Cumulative number of containers started",
		}, []string{"container_type"}),
		terminated: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_terminated_containers_total", Help: "[ALPHA] Cumulative number of terminated containers",
		}, []string{"container_type", "exit_code", "reason"}),
		containersPerPod: f.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_containers_per_pod_count", Help: "[ALPHA] The number of containers per pod.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 5),
		}),
		requestedResizes: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_container_requested_resizes_total",
			Help: "[ALPHA] Number of requested resizes, counted at the container level. " +
				"Different resources on the same container are counted separately.",
		}, []string{"resource", "requirement", "operation"}),
		infeasibleResizes: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_pod_infeasible_resizes_total", Help: "[ALPHA] Number of infeasible resizes for pods.",
		}, []string{"reason_detail"}),
		resizeDuration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kubelet_pod_resize_duration_milliseconds",
			Help:    "[ALPHA] Duration in milliseconds to actuate a pod resize",
			Buckets: []float64{10, 50, 100, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5},
		}, []string{"success"}),
	}
}

// containerType is the kubelet's name for a kind of container.
type containerType string

const (
	initType      containerType = "init_container"
	regularType   containerType = "container"
	ephemeralType containerType = "ephemeral_container"
)

// terminationReasons are the possible values of the label.
var terminationReasons = map[string]bool{
	lifecycle.Completed: true, lifecycle.Error: true, lifecycle.OOMKilled: true, "StartError": true, lifecycle.ContainerCannotRun: true,
	lifecycle.ContainerStatusUnknown: true, lifecycle.RestartingAllContainers: true,
}

func (n *podCounts) containerEnded(kind containerType, code int32, reason string) {
	if !terminationReasons[reason] {
		reason = "Other"
	}
	if code < 0 || code > 255 {
		code = 255
	}
	n.terminated.WithLabelValues(string(kind), strconv.Itoa(int(code)), reason).Inc()
}
