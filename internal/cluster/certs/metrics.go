package certs

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the metrics of one certificate. They are exported even without a Rotation.
type Metrics struct {
	errors   prometheus.Counter
	age      prometheus.Observer // of the certificate that is replaced, in seconds
	rotation atomic.Pointer[Rotation]
}

// ClientMetrics creates the metrics of the client certificate; if r is nil, they are not
// registered.
func ClientMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{age: prometheus.ObserverFunc(func(float64) {})} // the kubelet has no such metric
	m.errors = promauto.With(r).NewCounter(prometheus.CounterOpts{
		Name: "kubelet_certificate_manager_client_expiration_renew_errors",
		Help: "[ALPHA] Counter of certificate renewal errors.",
	})
	promauto.With(r).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubelet_certificate_manager_client_ttl_seconds",
		Help: "[ALPHA] Gauge of the TTL (time-to-live) of the Kubelet's client certificate. The value is in seconds until certificate expiry (negative if already expired). If client certificate is invalid or unused, the value will be +INF.",
	}, m.left)
	return m
}

// ServingMetrics creates the metrics of the serving certificate; if r is nil, they are not
// registered.
func ServingMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{}
	m.errors = promauto.With(r).NewCounter(prometheus.CounterOpts{
		Name: "kubelet_server_expiration_renew_errors", Help: "[ALPHA] Counter of certificate renewal errors.",
	})
	m.age = promauto.With(r).NewHistogram(prometheus.HistogramOpts{
		Name: "kubelet_certificate_manager_server_rotation_seconds",
		Help: "[ALPHA] Histogram of the number of seconds the previous certificate lived before being rotated.",
		// From a minute to four years.
		Buckets: []float64{60, 3600, 14400, 86400, 604800, 2592000, 7776000, 15552000, 31104000, 124416000},
	})
	promauto.With(r).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubelet_certificate_manager_server_ttl_seconds",
		Help: "[ALPHA] Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value is in seconds until certificate expiry (negative if already expired). If serving certificate is invalid or unused, the value will be +INF.",
	}, m.left)
	return m
}

// left returns the seconds until the certificate expires, +Inf if there is none.
func (m *Metrics) left() float64 {
	if r := m.rotation.Load(); r != nil {
		if left, ok := r.Left(); ok {
			return left.Seconds()
		}
	}
	return math.Inf(1)
}

// renewed counts a renewal attempt; age is that of the replaced certificate, 0 if there was none.
func (m *Metrics) renewed(age time.Duration, err error) {
	switch {
	case err != nil:
		m.errors.Inc()
	case age > 0:
		m.age.Observe(age.Seconds())
	}
}
