package kube

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	requests *prometheus.CounterVec
	latency  *prometheus.HistogramVec
}

// newMetrics registers the families of this package; nobody scrapes them if r is nil. The host is
// one, and the agent's own choice.
func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	return &metrics{
		requests: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rest_client_requests_total",
			Help: "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.",
		}, []string{"code", "method", "host"}),
		latency: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "rest_client_request_duration_seconds",
			Help:    "[ALPHA] Request latency in seconds. Broken down by verb, and host.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0},
		}, []string{"verb", "host"}),
	}
}

// counted counts requests.
type counted struct {
	*metrics
	next http.RoundTripper
}

// RoundTrip does the request.
func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	began := time.Now()
	resp, err := c.next.RoundTrip(r)
	code := "<error>"
	if err == nil {
		code = strconv.Itoa(resp.StatusCode)
	}
	c.requests.WithLabelValues(code, r.Method, r.URL.Host).Inc()
	c.latency.WithLabelValues(r.Method, r.URL.Host).Observe(time.Since(began).Seconds())
	return resp, err
}

// WrappedRoundTripper returns what is wrapped, by which client-go finds connections to close.
func (c counted) WrappedRoundTripper() http.RoundTripper { return c.next }
