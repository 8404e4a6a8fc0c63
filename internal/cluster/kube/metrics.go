package kube

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/client-go/util/flowcontrol"

	"berth/internal/record/span"
)

type metrics struct {
	requests, retries         *prometheus.CounterVec
	latency, resolution, wait *prometheus.HistogramVec
	sent, received            *prometheus.HistogramVec
}

// newMetrics creates the metrics of this package; if r is nil, they are not registered. The label
// host has one value, from the agent's configuration.
func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	latencies := []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0}
	sizes := []float64{64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return f.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	return &metrics{
		requests: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rest_client_requests_total",
			Help: "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.",
		}, []string{"code", "method", "host"}),
		retries: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rest_client_request_retries_total",
			Help: "[ALPHA] Number of request retries, partitioned by status code, verb, and host.",
		}, []string{"code", "verb", "host"}),
		latency: histogram("rest_client_request_duration_seconds",
			"[ALPHA] Request latency in seconds. Broken down by verb, and host.", latencies, "verb", "host"),
		resolution: histogram("rest_client_dns_resolution_duration_seconds",
			"[ALPHA] DNS resolver latency in seconds. Broken down by host.", latencies[:len(latencies)-1], "host"),
		wait: histogram("rest_client_rate_limiter_duration_seconds",
			"[ALPHA] Client side rate limiter latency in seconds. Broken down by verb, and host.", latencies, "verb", "host"),
		sent:     histogram("rest_client_request_size_bytes", "[ALPHA] Request size in bytes. Broken down by verb and host.", sizes, "verb", "host"),
		received: histogram("rest_client_response_size_bytes", "[ALPHA] Response size in bytes. Broken down by verb and host.", sizes, "verb", "host"),
	}
}

type callKey struct{}

// call is shared by the attempts of one call. It is not safe for concurrent use.
type call struct {
	verb string
	code string // of the last attempt; "" before the first
}

// methods has the HTTP method of an op's verb; GET for the others.
var methods = map[string]string{"create": http.MethodPost, "update": http.MethodPut, "patch": http.MethodPatch, "delete": http.MethodDelete}

// asCall returns the context of a call with the verb of its op.
func asCall(ctx context.Context, verb string) context.Context {
	method, ok := methods[verb]
	if !ok {
		method = http.MethodGet
	}
	return context.WithValue(ctx, callKey{}, &call{verb: method})
}

// counted is a RoundTripper that counts requests.
type counted struct {
	metrics *metrics
	next    http.RoundTripper
}

// RoundTrip sends one request.
func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	of, isCall := r.Context().Value(callKey{}).(*call)
	if isCall && of.code != "" {
		c.metrics.retries.WithLabelValues(of.code, r.Method, r.URL.Host).Inc()
	}
	ctx, ended := span.Start(r.Context(), span.Client, r.Method, span.Attribute{Key: "url.path", Value: r.URL.Path})
	if parent := span.Parent(ctx); parent != "" {
		r = r.Clone(ctx)
		r.Header.Set("Traceparent", parent)
	}
	began := time.Now()
	resp, err := c.next.RoundTrip(r)
	ended(err)
	code := "<error>"
	if err == nil {
		code = strconv.Itoa(resp.StatusCode)
	}
	c.metrics.requests.WithLabelValues(code, r.Method, r.URL.Host).Inc()
	c.metrics.latency.WithLabelValues(r.Method, r.URL.Host).Observe(time.Since(began).Seconds())
	if !isCall { // a watch, whose answer does not end
		return resp, err
	}
	of.code = code
	c.metrics.sent.WithLabelValues(r.Method, r.URL.Host).Observe(float64(max(r.ContentLength, 0)))
	if err == nil {
		resp.Body = &measured{ReadCloser: resp.Body, done: c.metrics.received.WithLabelValues(r.Method, r.URL.Host)}
	}
	return resp, err
}

// WrappedRoundTripper returns the wrapped RoundTripper, through which client-go finds connections
// to close.
func (c counted) WrappedRoundTripper() http.RoundTripper { return c.next }

// measured is a response body whose size is observed when it is closed.
type measured struct {
	io.ReadCloser
	n    int64
	done prometheus.Observer
}

// Read reads and counts bytes.
func (m *measured) Read(b []byte) (int, error) {
	n, err := m.ReadCloser.Read(b)
	m.n += int64(n)
	return n, err
}

// Close observes the size and closes the body.
func (m *measured) Close() error {
	m.done.Observe(float64(m.n))
	return m.ReadCloser.Close()
}

// dialFunc has the contract of net.Dialer.DialContext.
type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// resolved returns dial with a measurement of the DNS lookup time.
func (m *metrics) resolved(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		var host string
		var began time.Time
		return dial(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			DNSStart: func(i httptrace.DNSStartInfo) { host, began = i.Host, time.Now() },
			DNSDone:  func(httptrace.DNSDoneInfo) { m.resolution.WithLabelValues(host).Observe(time.Since(began).Seconds()) },
		}), network, address)
	}
}

// limited is a rate limiter with a measurement of waits.
type limited struct {
	flowcontrol.RateLimiter
	waits *prometheus.HistogramVec
	host  string
}

// Wait waits until the rate limit allows the call.
func (l limited) Wait(ctx context.Context) error {
	began := time.Now()
	err := l.RateLimiter.Wait(ctx)
	verb := http.MethodGet
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		verb = c.verb
	}
	l.waits.WithLabelValues(verb, l.host).Observe(time.Since(began).Seconds())
	return err
}
