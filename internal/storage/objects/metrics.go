package objects

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var certificateStates = prometheus.NewDesc("kubelet_podcertificate_states",
	"[ALPHA] Gauge vector reporting the number of pod certificate projected volume sources, faceted by signer_name and state.",
	[]string{"signer_name", "state"}, nil)

// Describe implements prometheus.Collector.
func (*Objects) Describe(ch chan<- *prometheus.Desc) { ch <- certificateStates }

// Collect implements prometheus.Collector: it counts the podCertificate sources of pods by state.
func (o *Objects) Collect(ch chan<- prometheus.Metric) {
	type series struct{ signer, state string }
	counts, now := map[series]int{}, time.Now()
	c := o.credentials
	c.mu.Lock()
	for _, h := range c.held {
		counts[series{h.src.SignerName, h.state(now)}]++
	}
	c.mu.Unlock()
	for s, n := range counts {
		ch <- prometheus.MustNewConstMetric(certificateStates, prometheus.GaugeValue, float64(n), s.signer, s.state)
	}
}

// state returns the state for the metric. The caller holds credentials.mu.
func (h *credential) state(now time.Time) string {
	switch {
	case h.refused != nil:
		return h.refusal
	case h.key == nil:
		return "not_yet_issued"
	case !now.Before(h.notAfter):
		return "expired"
	case !now.Before(h.beginRefresh.Add(overdueAfter)):
		return "overdue_for_refresh"
	}
	return "fresh"
}
