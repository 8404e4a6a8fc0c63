package images

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	v1 "k8s.io/api/core/v1"
)

// newCollected creates the counter of a Collector; if r is nil, it is not registered.
func newCollected(r prometheus.Registerer) *prometheus.CounterVec {
	return promauto.With(r).NewCounterVec(prometheus.CounterOpts{
		Name: "kubelet_image_garbage_collected_total",
		Help: "[ALPHA] Total number of images garbage collected by the kubelet, whether through disk usage or image age.",
	}, []string{"reason"})
}

type metrics struct{ ensured, checks *prometheus.CounterVec }

// newMetrics creates the metrics of a Puller with records, which may be nil; if r is nil, they are
// not registered. Records are counted on collection.
func newMetrics(r prometheus.Registerer, s *records) *metrics {
	f := promauto.With(r)
	for name, k := range map[string]struct{ folder, help string }{
		"kubelet_imagemanager_ondisk_pullintents":   {pullingDir, "[ALPHA] Number of ImagePullIntents stored on disk."},
		"kubelet_imagemanager_ondisk_pulledrecords": {pulledDir, "[ALPHA] Number of ImagePulledRecords stored on disk."},
	} {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: k.help}, func() float64 { return float64(s.count(k.folder)) })
	}
	return &metrics{
		ensured: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_image_manager_ensure_image_requests_total",
			Help: "[ALPHA] Number of ensure-image requests processed by the kubelet.",
		}, []string{"pull_policy", "present_locally", "pull_required"}),
		checks: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_imagemanager_image_mustpull_checks_total",
			Help: "[ALPHA] Counter for how many times kubelet checked whether credentials need to be re-verified to access an image",
		}, []string{"result"}),
	}
}

// known is a label value that may be unknown.
type known string

// The values of known (KEP-2535, "What specific metrics should inform a rollback").
const (
	isTrue    known = "true"
	isFalse   known = "false"
	isUnknown known = "unknown"
)

// check is the result of checking whether a pod may use a present image (KEP-2535, as above).
type check string

const (
	policyAllowed    check = "credentialPolicyAllowed"
	recordFound      check = "credentialRecordFound"
	mustAuthenticate check = "mustAuthenticate"
	checkFailed      check = "error"
)

func (m *metrics) checked(c check) { m.checks.WithLabelValues(string(c)).Inc() }

func (m *metrics) asked(policy v1.PullPolicy, present, pull known) {
	m.ensured.WithLabelValues(strings.ToLower(string(policy)), string(present), string(pull)).Inc()
}

// configInfo exports the hash of the credential provider configuration.
func configInfo(r prometheus.Registerer, hash string) {
	promauto.With(r).NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubelet_credential_provider_config_info",
		Help: "[ALPHA] Information about the last applied credential provider configuration with hash as label",
	}, []string{"hash"}).WithLabelValues(hash).Set(1)
}

// pluginMetrics count the runs of credential provider plugins. Their labels are bounded by the
// node's configuration.
type pluginMetrics struct {
	errors   *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// newPluginMetrics creates the metrics of Providers; if r is nil, they are not registered.
func newPluginMetrics(r prometheus.Registerer) *pluginMetrics {
	f := promauto.With(r)
	return &pluginMetrics{
		errors: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_credential_provider_plugin_errors_total",
			Help: "[ALPHA] Number of errors from credential provider plugin",
		}, []string{"plugin_name"}),
		duration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_credential_provider_plugin_duration",
			Help: "[ALPHA] Duration of execution in seconds for credential provider plugin",
		}, []string{"plugin_name"}),
	}
}

func (m *pluginMetrics) ran(plugin string, took time.Duration, err error) {
	m.duration.WithLabelValues(plugin).Observe(took.Seconds())
	if err != nil {
		m.errors.WithLabelValues(plugin).Inc()
	}
}
