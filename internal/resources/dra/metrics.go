package dra

import (
	"path"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc/status"
)

// Operation names, as in the metric's label.
const (
	prepareOperation   = "PrepareResources"
	unprepareOperation = "UnprepareResources"
)

// anyDriver is the label of the total over all drivers.
const anyDriver = "<any>"

type metrics struct {
	operations *prometheus.HistogramVec
	calls      *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer, inUse func() (map[string]int, int)) *metrics {
	f := promauto.With(r)
	if r != nil {
		r.MustRegister(claimsInUse{inUse})
	}
	return &metrics{
		operations: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dra_operations_duration_seconds",
			Help: "[ALPHA] Latency histogram in seconds for the duration of handling all ResourceClaims referenced by a pod when the pod starts or stops. " +
				"Identified by the name of the operation (PrepareResources or UnprepareResources) and separated by the success of the operation. " +
				"The number of failed operations is provided through the histogram's overall count.",
			Buckets: durations,
		}, []string{"operation_name", "is_error"}),
		calls: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "dra_grpc_operations_duration_seconds",
			Help:    "[ALPHA] Duration in seconds of the DRA gRPC operations",
			Buckets: durations,
		}, []string{"driver_name", "method_name", "grpc_status_code"}),
	}
}

// durations are the kubelet's buckets.
var durations = prometheus.ExponentialBucketsRange(.1, 40, 15)

func (m *metrics) operated(operation string, took time.Duration, err error) {
	m.operations.WithLabelValues(operation, strconv.FormatBool(err != nil)).Observe(took.Seconds())
}

// called observes the duration of a driver call; method is the full gRPC method name.
func (m *metrics) called(driver, method string, took time.Duration, err error) {
	code := "unknown-non-grpc"
	if s, ok := status.FromError(err); ok {
		code = s.Code().String()
	}
	m.calls.WithLabelValues(driver, path.Base(method), code).Observe(took.Seconds())
}

type claimsInUse struct {
	count func() (byDriver map[string]int, all int)
}

var claimsInUseDesc = prometheus.NewDesc("dra_resource_claims_in_use",
	"[ALPHA] The number of ResourceClaims that are currently in use on the node, by driver name (driver_name label value) and across all drivers (special value <any> for driver_name). "+
		"Note that the sum of all by-driver counts is not the total number of in-use ResourceClaims because the same ResourceClaim might use devices from different drivers. "+
		"Instead, use the count for the <any> driver_name.", []string{"driver_name"}, nil)

// Describe sends the metric's description.
func (claimsInUse) Describe(out chan<- *prometheus.Desc) { out <- claimsInUseDesc }

// Collect sends the current counts.
func (c claimsInUse) Collect(out chan<- prometheus.Metric) {
	byDriver, all := c.count()
	out <- prometheus.MustNewConstMetric(claimsInUseDesc, prometheus.GaugeValue, float64(all), anyDriver)
	for driver, n := range byDriver {
		out <- prometheus.MustNewConstMetric(claimsInUseDesc, prometheus.GaugeValue, float64(n), driver)
	}
}
