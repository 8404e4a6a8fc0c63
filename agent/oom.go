package agent

import (
	"berth/internal/observe/oom"
)

// killsFile stores which OOM kills were reported.
const killsFile = "oom_kills.json"

// newOOMWatcher creates the OOM watcher. A host without cgroups has none.
func (a *Agent) newOOMWatcher() {
	kernel := a.deps.out.Kernel
	if kernel == nil {
		var err error
		if kernel, err = oom.NewKernel(); err != nil {
			a.deps.cfg.Log.Warn("OOM kills are not reported", "error", err)
			return
		}
	}
	a.observation.oomWatcher = oom.New(oom.Config{
		Kernel: kernel, Kills: a.observation.kills, Observed: a.observation.pleg.Subscribe(), Newest: a.observation.pleg.Newest, Known: a.observation.pleg.Known, Relisted: a.observation.pleg.Relisted(),
		Cgroup: a.runtime.facts.PodPath, Log: a.deps.cfg.Log,
		Reporter: oom.Events{Recorder: a.deps.recorder, Pod: a.deps.stores.lastPod, Refresh: a.observation.pleg.Refresh},
	})
}
