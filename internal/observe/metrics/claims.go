package metrics

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/observe/stats"
)

// The metrics of claims' volume usage.
var (
	claimLabels = []string{"namespace", "persistentvolumeclaim"}

	volumeCapacity   = desc("kubelet_volume_stats_capacity_bytes", "[ALPHA] Capacity in bytes of the volume", claimLabels...)
	volumeAvailable  = desc("kubelet_volume_stats_available_bytes", "[ALPHA] Number of available bytes in the volume", claimLabels...)
	volumeUsed       = desc("kubelet_volume_stats_used_bytes", "[ALPHA] Number of used bytes in the volume", claimLabels...)
	volumeInodes     = desc("kubelet_volume_stats_inodes", "[ALPHA] Maximum number of inodes in the volume", claimLabels...)
	volumeInodesFree = desc("kubelet_volume_stats_inodes_free", "[ALPHA] Number of free inodes in the volume", claimLabels...)
	volumeInodesUsed = desc("kubelet_volume_stats_inodes_used", "[ALPHA] Number of used inodes in the volume", claimLabels...)
	volumeAbnormal   = desc("kubelet_volume_stats_health_status_abnormal",
		"[ALPHA] Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is unhealthy, 0 indicates volume is healthy", claimLabels...)
)

// Claims collects the usage of claims' volumes at each scrape.
type Claims struct {
	Uses func(ctx context.Context) []stats.ClaimUse
}

// Describe implements prometheus.Collector.
func (Claims) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{volumeCapacity, volumeAvailable, volumeUsed, volumeInodes, volumeInodesFree, volumeInodesUsed, volumeAbnormal} {
		ch <- d
	}
}

// Collect queries the usage.
func (c Claims) Collect(ch chan<- prometheus.Metric) {
	for _, u := range c.Uses(context.Background()) {
		for _, f := range []struct {
			family *prometheus.Desc
			value  uint64
		}{
			{volumeCapacity, u.Capacity},
			{volumeAvailable, u.Available},
			{volumeUsed, u.Used},
			{volumeInodes, u.Inodes},
			{volumeInodesFree, u.InodesFree},
			{volumeInodesUsed, u.InodesUsed},
		} {
			ch <- prometheus.MustNewConstMetric(f.family, gauge, float64(f.value), u.Namespace, u.Claim)
		}
		if u.Abnormal != nil {
			value := 0.0
			if *u.Abnormal {
				value = 1
			}
			ch <- prometheus.MustNewConstMetric(volumeAbnormal, gauge, value, u.Namespace, u.Claim)
		}
	}
}
