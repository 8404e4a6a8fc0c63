package server_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/api/server"
	"berth/internal/observe/metrics/metricstest"
)

// Requests count by what bounds them: the method, the first part of the path, and the port.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		k := serveKubeletWith(t, server.Config{Handlers: newNode().handlers(), Metrics: registry}, server.Kubelet{
			Authorization: server.Authorization{Mode: server.AlwaysAllow}, Authentication: server.Authentication{Anonymous: true},
		})
		for _, path := range []string{"/metrics", "/metrics/cadvisor", "/metrics/x", "/", "/stats/summary"} {
			k.ask(k.readOnly, "GET", path, credential{})
		}
		k.ask(k.readOnly, "BREW", "/whatever/it/is", credential{})
		k.ask(k.secure, "GET", "/exec/a/b/c", credential{})
		count := func(method, path, long, serverType string) string {
			return `kubelet_http_requests_total{long_running="` + long + `",method="` + method + `",path="` + path + `",server_type="` + serverType + `"}`
		}
		metricstest.Expect(t, registry, map[string]float64{
			count("GET", "metrics", "false", "readonly"): 1, count("GET", "metrics/cadvisor", "false", "readonly"): 1,
			count("GET", "stats", "false", "readonly"): 1, count("GET", "other", "false", "readonly"): 2, count("other", "other", "false", "readonly"): 1,
			count("GET", "exec", "true", "readwrite"): 1,
			`kubelet_http_requests_duration_seconds_count{long_running="true",method="GET",path="exec",server_type="readwrite"}`: 1,
			`kubelet_http_inflight_requests{long_running="true",method="GET",path="exec",server_type="readwrite"}`:               0,
		})
	})
}

// Every check that somebody asks for counts, one by one.
func TestHealthMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, registry := newNode().handlers(), prometheus.NewRegistry()
		h.Health.Check = func() error { return errors.New("stuck") }
		k := serveKubeletWith(t, server.Config{Handlers: h, SLIs: registry}, server.Kubelet{
			Authorization: server.Authorization{Mode: server.AlwaysAllow}, Authentication: server.Authentication{Anonymous: true},
		})
		k.ask(k.readOnly, "GET", "/healthz", credential{})
		k.ask(k.readOnly, "GET", "/healthz/syncloop", credential{})
		without := answer{200, "[+]ping ok\n[+]log ok\n[+]syncloop excluded: ok\nhealthz check passed\n"}
		if got := k.ask(k.readOnly, "GET", "/healthz?verbose&exclude=syncloop", credential{}); got != without {
			t.Errorf("without the check that fails: %+v", got)
		}
		want := map[string]float64{
			`kubernetes_healthcheck{name="log",type="healthz"}`: 1, `kubernetes_healthcheck{name="ping",type="healthz"}`: 1,
			`kubernetes_healthcheck{name="syncloop",type="healthz"}`:                       0,
			`kubernetes_healthchecks_total{name="log",status="success",type="healthz"}`:    2,
			`kubernetes_healthchecks_total{name="ping",status="success",type="healthz"}`:   2,
			`kubernetes_healthchecks_total{name="syncloop",status="error",type="healthz"}`: 2,
		}
		if diff := cmp.Diff(want, metricstest.Values(t, registry)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
