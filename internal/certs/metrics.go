package certs

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the families of one certificate. They are there, too, while nothing renews it.
type Metrics struct {
	errors prometheus.Counter
	age    prometheus.Observer // of the certificate that is replaced, in seconds
}

// ClientMetrics registers the families of the client certificate; nobody scrapes them if r is nil.
func ClientMetrics(r prometheus.Registerer) *Metrics {
	return &Metrics{
		errors: promauto.With(r).NewCounter(prometheus.CounterOpts{
			Name: "kubelet_certificate_manager_client_expiration_renew_errors",
			Help: "[ALPHA] Counter of certificate renewal errors.",
		}),
		age: prometheus.ObserverFunc(func(float64) {}), // the kubelet has none
	}
}

// ServingMetrics registers the families of the serving certificate; nobody scrapes them if r is nil.
func ServingMetrics(r prometheus.Registerer) *Metrics {
	return &Metrics{
		errors: promauto.With(r).NewCounter(prometheus.CounterOpts{
			Name: "kubelet_server_expiration_renew_errors",
			Help: "[ALPHA] Counter of certificate renewal errors.",
		}),
		age: promauto.With(r).NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_certificate_manager_server_rotation_seconds",
			Help: "[ALPHA] Histogram of the number of seconds the previous certificate lived before being rotated.",
			// From a minute to four years.
			Buckets: []float64{60, 3600, 14400, 86400, 604800, 2592000, 7776000, 15552000, 31104000, 124416000},
		}),
	}
}

// renewed counts a try to get the next certificate; age is that of the one before, 0 if there was none.
func (m *Metrics) renewed(age time.Duration, err error) {
	switch {
	case err != nil:
		m.errors.Inc()
	case age > 0:
		m.age.Observe(age.Seconds())
	}
}
