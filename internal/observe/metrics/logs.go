package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/observe/stats"
)

var logBytes = desc("kubelet_container_log_filesystem_used_bytes", "[ALPHA] Bytes used by the container's logs on the filesystem.",
	"uid", "namespace", "pod", "container")

// Logs collects the sizes of container logs at each scrape.
type Logs func() []stats.LogUse

// Describe implements prometheus.Collector.
func (Logs) Describe(ch chan<- *prometheus.Desc) { ch <- logBytes }

// Collect reads the sizes.
func (l Logs) Collect(ch chan<- prometheus.Metric) {
	for _, u := range l() {
		ch <- prometheus.MustNewConstMetric(logBytes, gauge, float64(u.Bytes), string(u.UID), u.Namespace, u.Name, u.Container)
	}
}
