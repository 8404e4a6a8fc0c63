package csi

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc/status"
)

type metrics struct{ operations *prometheus.HistogramVec }

// newMetrics creates the metrics of this package; if r is nil, they are not registered.
func newMetrics(r prometheus.Registerer) *metrics {
	return &metrics{operations: promauto.With(r).NewHistogramVec(prometheus.HistogramOpts{
		Name:    "csi_operations_seconds",
		Help:    "[ALPHA] Container Storage Interface operation duration with gRPC error code status total",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
	}, []string{"driver_name", "method_name", "grpc_status_code", "migrated"})}
}

// called counts a call of a driver, by the full name of its method.
func (m *metrics) called(driver, method string, took time.Duration, err error) {
	code := "unknown-non-grpc"
	if s, ok := status.FromError(err); ok {
		code = s.Code().String()
	}
	m.operations.WithLabelValues(driver, method, code, "false").Observe(took.Seconds())
}
