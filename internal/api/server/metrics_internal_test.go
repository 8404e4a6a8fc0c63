package server

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/observe/metrics/metricstest"
)

// Streams that WebSocket carries count besides, under the kubelet's words for them.
func TestWebSocketMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	h := newMetrics(registry, nil).count("readwrite", http.NotFoundHandler())
	for _, protocol := range []string{"websocket", "SPDY/3.1"} {
		upgrade := httptest.NewRequest("GET", "/portForward/default/web", nil)
		upgrade.Header.Set("Upgrade", protocol)
		h.ServeHTTP(httptest.NewRecorder(), upgrade)
	}
	metricstest.Expect(t, registry, map[string]float64{
		`kubelet_websocket_streaming_requests_total{subresource="portforward"}`:                                    1,
		`kubelet_http_requests_total{long_running="true",method="GET",path="portForward",server_type="readwrite"}`: 2,
	})
}

func TestPathLabel(t *testing.T) {
	for path, want := range map[string]string{
		"/metrics": "metrics", "/metrics/cadvisor": "metrics/cadvisor", "/metrics/x": "other", "/exec/a/b/c": "exec", "/": "other", "/stats/summary": "stats",
	} {
		if got := pathLabel(path); got != want {
			t.Errorf("pathLabel(%q) = %q, want %q", path, got, want)
		}
	}
}
