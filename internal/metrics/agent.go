package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/lifecycle"
)

// Buckets of the kubelet's histograms.
var (
	startBuckets = []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
	// resizeBuckets are in milliseconds.
	resizeBuckets = []float64{10, 50, 100, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5}
)

// Agent are the metrics that other packages feed. Its methods do not block and are safe for concurrent use.
type Agent struct {
	podStart              prometheus.Histogram
	startedPods           prometheus.Counter
	startedContainers     *prometheus.CounterVec
	terminated            *prometheus.CounterVec
	requestedResizes      *prometheus.CounterVec
	infeasibleResizes     *prometheus.CounterVec
	resizeTime            *prometheus.HistogramVec
	containersPerPod      prometheus.Histogram
	requests              *prometheus.CounterVec
	requestTime           *prometheus.HistogramVec
	inFlight              *prometheus.GaugeVec
	podStartTotal         prometheus.Histogram
	startedUserNamespaced prometheus.Counter
	webSockets            *prometheus.CounterVec
	nodeName              *prometheus.GaugeVec
	buildInfo             *prometheus.GaugeVec
	all                   []prometheus.Collector
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
	a.webSockets = counter("kubelet_websocket_streaming_requests_total", "[ALPHA] Total number of WebSocket streaming requests received by kubelet.", "subresource")
	a.podStart = one("kubelet_pod_start_duration_seconds", "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run", startBuckets)
	a.podStartTotal = one("kubelet_pod_start_total_duration_seconds", "[ALPHA] Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch", startBuckets)
	a.startedPods = count("kubelet_started_pods_total", "[ALPHA] Cumulative number of pods started")
	a.startedUserNamespaced = count("kubelet_started_user_namespaced_pods_total", "[ALPHA] Cumulative number of pods with user namespaces started")
	a.startedContainers = counter("kubelet_started_containers_total", "[ALPHA] Cumulative number of containers started", "container_type")
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
