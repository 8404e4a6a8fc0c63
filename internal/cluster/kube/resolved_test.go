package kube

import (
	"context"
	"net"
	"net/http/httptrace"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/observe/metrics/metricstest"
)

// How long the server's name takes to be resolved counts by that name.
func TestMetricsOfResolution(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		dial := newMetrics(registry).resolved(func(ctx context.Context, _, _ string) (net.Conn, error) {
			trace := httptrace.ContextClientTrace(ctx)
			trace.DNSStart(httptrace.DNSStartInfo{Host: "api.example"})
			time.Sleep(3 * time.Second)
			trace.DNSDone(httptrace.DNSDoneInfo{})
			return nil, net.ErrClosed
		})
		if _, err := dial(t.Context(), "tcp", "api.example:6443"); err == nil {
			t.Fatal("nobody is there")
		}
		metricstest.Expect(t, registry, map[string]float64{
			`rest_client_dns_resolution_duration_seconds_count{host="api.example"}`: 1, `rest_client_dns_resolution_duration_seconds_sum{host="api.example"}`: 3,
		})
	})
}
