package agent

import (
	"context"
	"maps"

	v1 "k8s.io/api/core/v1"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"berth/internal/config"
	"berth/internal/host/cgroupstat"
	"berth/internal/observe/pleg"
	"berth/internal/observe/podview"
	"berth/internal/observe/stats"
	"berth/internal/storage/volumes"
)

// newStats creates the collector of resource usage of pods and node.
func newStats(b *base, rt *containerRuntime, p *pleg.PLEG, v podview.View, m *volumes.Manager) *stats.Collector {
	return stats.New(stats.Config{
		NodeName: b.cfg.NodeName, RootDir: b.cfg.RootDir, PodLogsDir: b.cfg.PodLogsDir, Hierarchy: cgroupstat.Detect,
		Observed: p.Known, Pod: v.Get, Cgroup: rt.facts.PodPath, Class: rt.facts.QoSPath,
		Started: b.started, Runtime: rt.cri.Images, VolumePeriod: b.settings.volumePeriod, System: b.settings.systemCgroups, Log: b.cfg.Log, Metrics: b.out.Metrics,
		Volume: func(ctx context.Context, p *v1.Pod, volume string) (stats.VolumeUse, error) {
			u, err := m.Use(ctx, p, volume)
			return stats.VolumeUse(u), err
		},
	})
}

// systemCgroups returns the configured cgroups of system components, by their names in the Summary
// API.
func systemCgroups(k *config.Kubelet) map[string]string {
	all := map[string]string{
		summary.SystemContainerKubelet: k.KubeletCgroups, summary.SystemContainerRuntime: k.RuntimeCgroups, summary.SystemContainerMisc: k.SystemCgroups,
	}
	maps.DeleteFunc(all, func(_, path string) bool { return path == "" })
	return all
}
