package metrics

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	clientLeft = desc("kubelet_certificate_manager_client_ttl_seconds",
		"[ALPHA] Gauge of the TTL (time-to-live) of the Kubelet's client certificate. The value is in seconds until certificate expiry (negative if already expired). If client certificate is invalid or unused, the value will be +INF.")
	serverLeft = desc("kubelet_certificate_manager_server_ttl_seconds",
		"[ALPHA] Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value is in seconds until certificate expiry (negative if already expired). If serving certificate is invalid or unused, the value will be +INF.")
)

// Certificates tells how long the agent's certificates hold, which it gets from the API server: false says that there is none. A nil function
// is that it has no such certificate.
type Certificates struct{ Client, Server func() (time.Duration, bool) }

// Describe names the families.
func (Certificates) Describe(ch chan<- *prometheus.Desc) {
	ch <- clientLeft
	ch <- serverLeft
}

// Collect asks for both.
func (c Certificates) Collect(ch chan<- prometheus.Metric) {
	for _, of := range []struct {
		d    *prometheus.Desc
		left func() (time.Duration, bool)
	}{{clientLeft, c.Client}, {serverLeft, c.Server}} {
		seconds := math.Inf(1)
		if of.left != nil {
			if left, ok := of.left(); ok {
				seconds = left.Seconds()
			}
		}
		ch <- prometheus.MustNewConstMetric(of.d, gauge, seconds)
	}
}
