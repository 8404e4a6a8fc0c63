package cri

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type metrics struct {
	operations, operationErrors *prometheus.CounterVec
	operationDuration           *prometheus.HistogramVec
	sandboxDuration             *prometheus.HistogramVec
	sandboxErrors               *prometheus.CounterVec
	startedPodsErrors           prometheus.Counter
	startedUserNamespacedErrors prometheus.Counter
	pullDuration                *prometheus.HistogramVec
}

// newMetrics creates the metrics of this package; if r is nil, they are not registered.
func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	return &metrics{
		operations: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_runtime_operations_total",
			Help: "[ALPHA] Cumulative number of runtime operations by operation type.",
		}, []string{"operation_type"}),
		operationErrors: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_runtime_operations_errors_total",
			Help: "[ALPHA] Cumulative number of runtime operation errors by operation type.",
		}, []string{"operation_type"}),
		operationDuration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kubelet_runtime_operations_duration_seconds",
			Help:    "[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2.5, 14),
		}, []string{"operation_type"}),
		sandboxDuration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_run_podsandbox_duration_seconds",
			Help: "[ALPHA] Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.",
		}, []string{"runtime_handler"}),
		sandboxErrors: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_run_podsandbox_errors_total",
			Help: "[ALPHA] Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.",
		}, []string{"runtime_handler"}),
		startedPodsErrors: f.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_started_pods_errors_total", Help: "[ALPHA] Cumulative number of errors when starting pods",
		}),
		startedUserNamespacedErrors: f.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_started_user_namespaced_pods_errors_total",
			Help: "[ALPHA] Cumulative number of errors when starting pods with user namespaces. This metric will only be collected on Linux.",
		}),
		pullDuration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_image_pull_duration_seconds", Help: "[ALPHA] Duration in seconds to pull an image.",
			Buckets: []float64{1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600},
		}, []string{"image_size_in_bytes"}),
	}
}

// operationTypes are the kubelet's labels for CRI calls. Other calls are counted as "other".
var operationTypes = map[string]string{
	"Version": "version", "Status": "status", "RuntimeConfig": "runtime_config", "RunPodSandbox": "run_podsandbox", "StopPodSandbox": "stop_podsandbox",
	"RemovePodSandbox": "remove_podsandbox", "PodSandboxStatus": "podsandbox_status", "ListPodSandbox": "list_podsandbox",
	"CreateContainer": "create_container", "StartContainer": "start_container", "StopContainer": "stop_container", "RemoveContainer": "remove_container",
	"ListContainers": "list_containers", "ContainerStatus": "container_status", "UpdateContainerResources": "update_container",
	"UpdatePodSandboxResources": "update_podsandbox_resources", "ExecSync": "exec_sync", "Exec": "exec", "Attach": "attach", "PortForward": "port_forward",
	"ReopenContainerLog": "reopen_container_log", "ContainerStats": "container_stats", "ListContainerStats": "list_container_stats",
	"PodSandboxStats": "podsandbox_stats", "ListPodSandboxStats": "list_podsandbox_stats", "UpdateRuntimeConfig": "update_runtime_config",
	"CheckpointContainer": "checkpoint_container", "ListImages": "list_images", "ImageStatus": "image_status", "PullImage": "pull_image",
	"RemoveImage": "remove_image", "ImageFsInfo": "image_fs_info",
}

// called counts a CRI call by method.
func (m *metrics) called(method string, req any, took time.Duration, err error) {
	operation, ok := operationTypes[method]
	if !ok {
		operation = "other"
	}
	m.operations.WithLabelValues(operation).Inc()
	m.operationDuration.WithLabelValues(operation).Observe(took.Seconds())
	if err != nil {
		m.operationErrors.WithLabelValues(operation).Inc()
	}
	switch r := req.(type) {
	case *runtimeapi.RunPodSandboxRequest:
		m.sandboxDuration.WithLabelValues(r.RuntimeHandler).Observe(took.Seconds())
		if err != nil {
			m.sandboxErrors.WithLabelValues(r.RuntimeHandler).Inc()
			m.startedPodsErrors.Inc()
			if o := r.GetConfig().GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions(); o != nil && o.Mode == runtimeapi.NamespaceMode_POD {
				m.startedUserNamespacedErrors.Inc()
			}
		}
	case *runtimeapi.PullImageRequest:
		if err == nil {
			m.pullDuration.WithLabelValues("N/A").Observe(took.Seconds()) // CRI does not report sizes
		}
	}
}
