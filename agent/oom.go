package agent

import (
	"berth/internal/observe/oom"
)

// killsFile stores which OOM kills were reported.
const killsFile = "oom_kills.json"

// newOOMWatcher creates the OOM watcher; nil on a host without cgroups.
func newOOMWatcher(g *dependencies, rt *containerRuntime, o *observation) *oom.Watcher {
	kernel := g.out.Kernel
	if kernel == nil {
		var err error
		if kernel, err = oom.NewKernel(); err != nil {
			g.cfg.Log.Warn("OOM kills are not reported", "error", err)
			return nil
		}
	}
	return oom.New(oom.Config{
		Kernel: kernel, Kills: o.kills, Observed: o.pleg.Subscribe(), Newest: o.pleg.Newest, Known: o.pleg.Known, Relisted: o.pleg.Relisted(),
		Cgroup: rt.facts.PodPath, Log: g.cfg.Log,
		Reporter: oom.Events{Recorder: g.recorder, Pod: g.stores.lastPod, Refresh: o.pleg.Refresh},
	})
}
