package metrics

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"berth/internal/lifecycle"
)

// Buckets of the kubelet's histograms.
var (
	startBuckets  = []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
	pullBuckets   = []float64{1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
	statusBuckets = []float64{0.01, 0.05, 0.1, 0.5, 1, 5, 10, 20, 30, 45, 60}
	// resizeBuckets are in milliseconds.
	resizeBuckets = []float64{10, 50, 100, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5}
	callBuckets   = prometheus.ExponentialBuckets(0.005, 2.5, 14)
)

// Agent are the metrics that other packages feed. Its methods do not block and are safe for concurrent use.
type Agent struct {
	operations, operationErrors *prometheus.CounterVec
	operationTime               *prometheus.HistogramVec
	sandboxTime                 *prometheus.HistogramVec
	sandboxErrors               *prometheus.CounterVec
	pullTime                    *prometheus.HistogramVec
	workerTime                  *prometheus.HistogramVec
	workerStart                 prometheus.Histogram
	podStart                    prometheus.Histogram
	startedPods                 prometheus.Counter
	startedContainers           *prometheus.CounterVec
	startedContainersErrors     *prometheus.CounterVec
	terminated                  *prometheus.CounterVec
	requestedResizes            *prometheus.CounterVec
	infeasibleResizes           *prometheus.CounterVec
	resizeTime                  *prometheus.HistogramVec
	containersPerPod            prometheus.Histogram
	requests                    *prometheus.CounterVec
	requestTime                 *prometheus.HistogramVec
	inFlight                    *prometheus.GaugeVec
	statusTime                  prometheus.Histogram
	podStartTotal               prometheus.Histogram
	startedPodsErrors           prometheus.Counter
	startedUserNamespaced       prometheus.Counter
	webSockets                  *prometheus.CounterVec
	nodeName                    *prometheus.GaugeVec
	buildInfo                   *prometheus.GaugeVec
	all                         []prometheus.Collector
}

// NewAgent returns the families, not registered yet.
func NewAgent() *Agent {
	a := &Agent{}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		a.all = append(a.all, v)
		return v
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
		a.all = append(a.all, v)
		return v
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
		a.all = append(a.all, v)
		return v
	}
	one := func(name, help string, buckets []float64) prometheus.Histogram {
		v := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
		a.all = append(a.all, v)
		return v
	}
	count := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		a.all = append(a.all, c)
		return c
	}
	def := prometheus.DefBuckets
	a.operations = counter("kubelet_runtime_operations_total", "[ALPHA] Cumulative number of runtime operations by operation type.", "operation_type")
	a.operationErrors = counter("kubelet_runtime_operations_errors_total", "[ALPHA] Cumulative number of runtime operation errors by operation type.", "operation_type")
	a.operationTime = histogram("kubelet_runtime_operations_duration_seconds", "[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.", callBuckets, "operation_type")
	a.sandboxTime = histogram("kubelet_run_podsandbox_duration_seconds", "[ALPHA] Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.", def, "runtime_handler")
	a.sandboxErrors = counter("kubelet_run_podsandbox_errors_total", "[ALPHA] Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.", "runtime_handler")
	a.pullTime = histogram("kubelet_image_pull_duration_seconds", "[ALPHA] Duration in seconds to pull an image.", pullBuckets, "image_size_in_bytes")
	a.statusTime = one("kubelet_pod_status_sync_duration_seconds", "[ALPHA] Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the API is successfully updated for that pod, even if multiple intermediate changes to pod status occur.", statusBuckets)
	a.webSockets = counter("kubelet_websocket_streaming_requests_total", "[ALPHA] Total number of WebSocket streaming requests received by kubelet.", "subresource")
	a.workerTime = histogram("kubelet_pod_worker_duration_seconds", "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, sync, terminating or terminated", def, "operation_type")
	a.workerStart = one("kubelet_pod_worker_start_duration_seconds", "[ALPHA] Duration in seconds from kubelet seeing a pod to starting a worker.", def)
	a.podStart = one("kubelet_pod_start_duration_seconds", "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run", startBuckets)
	a.podStartTotal = one("kubelet_pod_start_total_duration_seconds", "[ALPHA] Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch", startBuckets)
	a.startedPods = count("kubelet_started_pods_total", "[ALPHA] Cumulative number of pods started")
	a.startedPodsErrors = count("kubelet_started_pods_errors_total", "[ALPHA] Cumulative number of errors when starting pods")
	a.startedUserNamespaced = count("kubelet_started_user_namespaced_pods_total", "[ALPHA] Cumulative number of pods with user namespaces started")
	a.startedContainers = counter("kubelet_started_containers_total", "[ALPHA] Cumulative number of containers started", "container_type")
	a.startedContainersErrors = counter("kubelet_started_containers_errors_total", "[ALPHA] Cumulative number of errors when starting containers", "container_type", "code")
	a.terminated = counter("kubelet_terminated_containers_total", "[ALPHA] Cumulative number of terminated containers", "container_type", "exit_code", "reason")
	a.requestedResizes = counter("kubelet_container_requested_resizes_total", "[ALPHA] Number of requested resizes, counted at the container level. Different resources on the same container are counted separately.", "resource", "requirement", "operation")
	a.infeasibleResizes = counter("kubelet_pod_infeasible_resizes_total", "[ALPHA] Number of infeasible resizes for pods.", "reason_detail")
	a.resizeTime = histogram("kubelet_pod_resize_duration_milliseconds", "[ALPHA] Duration in milliseconds to actuate a pod resize", resizeBuckets, "success")
	a.containersPerPod = one("kubelet_containers_per_pod_count", "[ALPHA] The number of containers per pod.", prometheus.ExponentialBuckets(1, 2, 5))
	a.requests = counter("kubelet_http_requests_total", "[ALPHA] Number of the http requests received since the server started", "method", "path", "server_type", "long_running")
	a.requestTime = histogram("kubelet_http_requests_duration_seconds", "[ALPHA] Duration in seconds to serve http requests", def, "method", "path", "server_type", "long_running")
	a.inFlight = gauge("kubelet_http_inflight_requests", "[ALPHA] Number of the inflight http requests", "method", "path", "server_type", "long_running")
	a.nodeName = gauge("kubelet_node_name", "[ALPHA] The node's name. The count is always 1.", "node")
	a.buildInfo = gauge("kubernetes_build_info", "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
		"major", "minor", "git_version", "go_version", "platform")
	return a
}

// Register registers all families.
func (a *Agent) Register(r prometheus.Registerer) error {
	for _, c := range a.all {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// operationTypes are the kubelet's words for the calls of CRI. Other calls are counted as "other".
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

// RuntimeCall counts a call of CRI by the name of its method; handler is RunPodSandbox's runtime handler.
func (a *Agent) RuntimeCall(method, handler string, took time.Duration, err error) {
	op, ok := operationTypes[method]
	if !ok {
		op = "other"
	}
	a.operations.WithLabelValues(op).Inc()
	a.operationTime.WithLabelValues(op).Observe(took.Seconds())
	if err != nil {
		a.operationErrors.WithLabelValues(op).Inc()
	}
	switch method {
	case "RunPodSandbox":
		a.sandboxTime.WithLabelValues(handler).Observe(took.Seconds())
		if err != nil {
			a.sandboxErrors.WithLabelValues(handler).Inc()
			a.startedPodsErrors.Inc()
		}
	case "PullImage":
		if err == nil {
			a.pullTime.WithLabelValues("N/A").Observe(took.Seconds()) // CRI does not tell sizes
		}
	}
}

// StatusTold counts a status that the API server took, so long after it changed.
func (a *Agent) StatusTold(took time.Duration) { a.statusTime.Observe(took.Seconds()) }

// Passed counts a pass over a pod: create, sync, terminating or terminated.
func (a *Agent) Passed(operation string, took time.Duration) {
	a.workerTime.WithLabelValues(operation).Observe(took.Seconds())
}

// WorkerStarted counts a pod's first pass, so long after the pod was first seen.
func (a *Agent) WorkerStarted(wait time.Duration) { a.workerStart.Observe(wait.Seconds()) }

// Node sets what is said once.
func (a *Agent) Node(name, version, goVersion, platform string) {
	a.nodeName.WithLabelValues(name).Set(1)
	a.buildInfo.WithLabelValues("1", "36", version, goVersion, platform).Set(1)
}

// containerType is the kubelet's word for a kind of container.
type containerType string

const (
	initType      containerType = "init_container"
	regularType   containerType = "container"
	ephemeralType containerType = "ephemeral_container"
)

// StartFailed counts a container that could not be started, by the reason in its status.
func (a *Agent) StartFailed(p *v1.Pod, container string, reason string) {
	kind := regularType
	if slices.ContainsFunc(p.Spec.InitContainers, func(c v1.Container) bool { return c.Name == container }) {
		kind = initType
	}
	if slices.ContainsFunc(p.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return c.Name == container }) {
		kind = ephemeralType
	}
	a.startedContainersErrors.WithLabelValues(string(kind), reason).Inc()
}

// terminationReasons bound the label.
var terminationReasons = map[string]bool{
	lifecycle.Completed: true, lifecycle.Error: true, lifecycle.OOMKilled: true, "StartError": true, lifecycle.ContainerCannotRun: true,
	lifecycle.ContainerStatusUnknown: true, lifecycle.RestartingAllContainers: true,
}

func (a *Agent) containerEnded(kind containerType, code int32, reason string) {
	if !terminationReasons[reason] {
		reason = "Other"
	}
	if code < 0 || code > 255 {
		code = 255
	}
	a.terminated.WithLabelValues(string(kind), strconv.Itoa(int(code)), reason).Inc()
}
