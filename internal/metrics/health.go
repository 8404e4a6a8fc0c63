package metrics

import "github.com/prometheus/client_golang/prometheus"

// Health counts the results of health checks: the families of /metrics/slis. Checks are made when somebody asks for them.
type Health struct {
	last  *prometheus.GaugeVec
	total *prometheus.CounterVec
}

// NewHealth returns the families, without a result.
func NewHealth() *Health {
	return &Health{
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubernetes_healthcheck", Help: "[STABLE] This metric records the result of a single healthcheck.",
		}, []string{"type", "name"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubernetes_healthchecks_total", Help: "[STABLE] This metric records the results of all healthcheck.",
		}, []string{"type", "name", "status"}),
	}
}

// Checked counts the result of one of the checks of /healthz, which are few.
func (h *Health) Checked(check string, err error) {
	status, healthy := "success", 1.0
	if err != nil {
		status, healthy = "error", 0
	}
	h.last.WithLabelValues("healthz", check).Set(healthy)
	h.total.WithLabelValues("healthz", check, status).Inc()
}

// Describe names the families.
func (h *Health) Describe(ch chan<- *prometheus.Desc) {
	h.last.Describe(ch)
	h.total.Describe(ch)
}

// Collect tells of the checks that were made.
func (h *Health) Collect(ch chan<- prometheus.Metric) {
	h.last.Collect(ch)
	h.total.Collect(ch)
}
