package agent

import (
	"context"
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"berth/internal/cgroupstat"
	"berth/internal/config"
	"berth/internal/cri"
	"berth/internal/stats"
)

var _ stats.Runtime = (*cri.Client)(nil)

// newStats builds what reads the use of pods and node.
func (a *Agent) newStats() *stats.Collector {
	c := stats.Config{
		NodeName: a.cfg.NodeName, RootDir: a.cfg.RootDir, PodLogsDir: a.cfg.PodLogsDir, Hierarchy: cgroupstat.Detect,
		Observed: a.pleg.Known, Pod: a.getPod, Cgroup: a.facts.PodPath, Class: a.facts.QoSPath,
		Started: a.started, Runtime: a.cri, VolumePeriod: time.Minute, Log: a.cfg.Log,
		Volume: func(ctx context.Context, p *v1.Pod, volume string) (stats.VolumeUse, error) {
			u, err := a.storage.volumes.Use(ctx, p, volume)
			return stats.VolumeUse(u), err
		},
	}
	if k := a.cfg.Kubelet; k != nil {
		c.VolumePeriod = k.VolumeStatsAggPeriod.Duration
		c.System = systemCgroups(k)
	}
	return stats.New(c)
}

// systemCgroups returns the cgroups of the node's own parts that the configuration names, by their names in the summary.
func systemCgroups(k *config.Kubelet) map[string]string {
	all := map[string]string{
		summary.SystemContainerKubelet: k.KubeletCgroups, summary.SystemContainerRuntime: k.RuntimeCgroups, summary.SystemContainerMisc: k.SystemCgroups,
	}
	maps.DeleteFunc(all, func(_, path string) bool { return path == "" })
	return all
}
