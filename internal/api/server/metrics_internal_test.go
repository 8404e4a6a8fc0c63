package server

import (
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/record/span"
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

// A request is a span below the one that it names, and what is done for it is within.
func TestTracedRequests(t *testing.T) {
	tracer := span.New(1_000_000)
	h := traced(tracer, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, ended := span.Start(r.Context(), span.Client, "call")
		ended(nil)
	}))
	r := httptest.NewRequest("POST", "/exec/default/web/main?command=ls", nil)
	r.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	h.ServeHTTP(httptest.NewRecorder(), r)
	all := tracer.Take()
	if len(all) != 2 || all[1].Name != "POST /exec" || hex.EncodeToString(all[1].Parent[:]) != "b7ad6b7169203331" || all[0].Parent != all[1].ID {
		t.Errorf("spans %+v", all)
	}
}
