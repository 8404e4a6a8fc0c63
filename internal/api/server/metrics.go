package server

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"berth/internal/record/span"
)

type metrics struct {
	requests        *prometheus.CounterVec
	requestDuration *prometheus.HistogramVec
	inFlight        *prometheus.GaugeVec
	webSockets      *prometheus.CounterVec
	health          *prometheus.GaugeVec
	healthResults   *prometheus.CounterVec
}

// newMetrics registers the metrics of this package: those of health checks with slis, the others
// with r. If a registerer is nil, its metrics are not registered.
func newMetrics(r, slis prometheus.Registerer) *metrics {
	f, sli := promauto.With(r), promauto.With(slis)
	request := []string{"method", "path", "server_type", "long_running"}
	return &metrics{
		requests: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_http_requests_total",
			Help: "[ALPHA] Number of the http requests received since the server started",
		}, request),
		requestDuration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_http_requests_duration_seconds", Help: "[ALPHA] Duration in seconds to serve http requests",
		}, request),
		inFlight: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubelet_http_inflight_requests", Help: "[ALPHA] Number of the inflight http requests",
		}, request),
		webSockets: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_websocket_streaming_requests_total",
			Help: "[ALPHA] Total number of WebSocket streaming requests received by kubelet.",
		}, []string{"subresource"}),
		health: sli.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubernetes_healthcheck", Help: "[STABLE] This metric records the result of a single healthcheck.",
		}, []string{"type", "name"}),
		healthResults: sli.NewCounterVec(prometheus.CounterOpts{
			Name: "kubernetes_healthchecks_total", Help: "[STABLE] This metric records the results of all healthcheck.",
		}, []string{"type", "name", "status"}),
	}
}

// knownPaths are the values of the label path: the kubelet's paths.
var knownPaths = map[string]bool{
	"pods": true, "runningpods": true, "healthz": true, "configz": true, "stats": true, "logs": true, "checkpoint": true, "statusz": true, "flagz": true,
	"containerLogs": true, "exec": true, "attach": true, "portForward": true, "run": true, "debug": true, "metrics": true,
	"metrics/cadvisor": true, "metrics/resource": true, "metrics/probes": true,
	"metrics/slis": true,
}

// webSocketPaths are the streams over WebSocket, as the kubelet names them.
var webSocketPaths = map[string]string{"exec": "exec", "attach": "attach", "portForward": "portforward"}

var longRunning = map[string]bool{"exec": true, "attach": true, "portForward": true, "debug": true}

var knownMethods = map[string]bool{
	http.MethodGet: true, http.MethodHead: true, http.MethodPost: true, http.MethodPut: true, http.MethodPatch: true, http.MethodDelete: true,
}

// pathLabel returns the first part of the path, for metrics the first two.
func pathLabel(path string) string {
	parts := strings.SplitN(strings.Trim(path, "/"), "/", 3)
	label := parts[0]
	if label == "metrics" && len(parts) > 1 {
		label += "/" + parts[1]
	}
	if !knownPaths[label] {
		return "other"
	}
	return label
}

// count counts the requests to next; serverType is readonly or readwrite.
func (m *metrics) count(serverType string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, method := pathLabel(r.URL.Path), r.Method
		if !knownMethods[method] {
			method = "other"
		}
		labels := []string{method, path, serverType, strconv.FormatBool(longRunning[path])}
		m.requests.WithLabelValues(labels...).Inc()
		if name := webSocketPaths[path]; name != "" && strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
			m.webSockets.WithLabelValues(name).Inc()
		}
		m.inFlight.WithLabelValues(labels...).Inc()
		defer m.inFlight.WithLabelValues(labels...).Dec()
		began := time.Now()
		next.ServeHTTP(w, r)
		m.requestDuration.WithLabelValues(labels...).Observe(time.Since(began).Seconds())
	})
}

// traced creates a span for each request, as a child of the traceparent header. The client is
// authenticated.
func traced(t *span.Tracer, next http.Handler) http.Handler {
	if t == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, ended := t.Serve(r.Context(), r.Header.Get("Traceparent"), r.Method+" /"+pathLabel(r.URL.Path), span.Attribute{Key: "url.path", Value: r.URL.Path})
		defer ended(nil)
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (m *metrics) checked(check string, err error) {
	status, healthy := "success", 1.0
	if err != nil {
		status, healthy = "error", 0
	}
	m.health.WithLabelValues("healthz", check).Set(healthy)
	m.healthResults.WithLabelValues("healthz", check, status).Inc()
}
