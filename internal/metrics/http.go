package metrics

import (
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler answers with what the gatherer has. Several scrapes at a time are few, and what could not be collected does not hide the rest.
func Handler(g prometheus.Gatherer, log *slog.Logger) http.Handler {
	const atOnce = 4
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{
		ErrorLog: errorLog{log}, ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: atOnce, Timeout: 2 * scrapeLimit,
	})
}

type errorLog struct{ log *slog.Logger }

func (l errorLog) Println(v ...any) { l.log.Warn("metrics not collected", "error", v) }

// knownPaths bound the label path; what begins with them is the kubelet's API.
var knownPaths = map[string]bool{
	"pods": true, "runningpods": true, "healthz": true, "configz": true, "stats": true, "logs": true, "checkpoint": true, "statusz": true, "flagz": true,
	"containerLogs": true, "exec": true, "attach": true, "portForward": true, "run": true, "debug": true, "metrics": true,
	"metrics/cadvisor": true, "metrics/resource": true, "metrics/probes": true,
	"metrics/slis": true,
}

// webSocketPaths are the streams that WebSocket carries, as the kubelet calls them.
var webSocketPaths = map[string]string{"exec": "exec", "attach": "attach", "portForward": "portforward"}

var longRunning = map[string]bool{"exec": true, "attach": true, "portForward": true, "debug": true}

var knownMethods = map[string]bool{
	http.MethodGet: true, http.MethodHead: true, http.MethodPost: true, http.MethodPut: true, http.MethodPatch: true, http.MethodDelete: true,
}

// pathLabel is the first part of the path, for metrics the first two.
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

// Door counts requests at a door; serverType is readonly or readwrite.
func (a *Agent) Door(serverType string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, method := pathLabel(r.URL.Path), r.Method
		if !knownMethods[method] {
			method = "other"
		}
		labels := []string{method, path, serverType, strconv.FormatBool(longRunning[path])}
		a.requests.WithLabelValues(labels...).Inc()
		if name := webSocketPaths[path]; name != "" && strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
			a.webSockets.WithLabelValues(name).Inc()
		}
		a.inFlight.WithLabelValues(labels...).Inc()
		defer a.inFlight.WithLabelValues(labels...).Dec()
		began := time.Now()
		next.ServeHTTP(w, r)
		a.requestTime.WithLabelValues(labels...).Observe(time.Since(began).Seconds())
	})
}
