package certs

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/observe/metrics/metricstest"
)

// A client certificate that is not there has no end, and each try that fails counts.
func TestMetricsOfAClientCertificate(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := ClientMetrics(registry)
	m.renewed(0, errors.New("nobody signs"))
	m.renewed(time.Hour, nil)
	metricstest.Expect(t, registry, map[string]float64{
		"kubelet_certificate_manager_client_ttl_seconds": math.Inf(1), "kubelet_certificate_manager_client_expiration_renew_errors": 1,
	})
}
