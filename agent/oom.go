package agent

import (
	"berth/internal/observe/oom"
)

// killsFile stores which OOM kills were reported.
const killsFile = "oom_kills.json"

// newOOMWatcher creates the OOM watcher. A host without cgroups has none.
func (a *Agent) newOOMWatcher() {
	kernel := a.out.Kernel
	if kernel == nil {
		var err error
		if kernel, err = oom.NewKernel(); err != nil {
			a.cfg.Log.Warn("OOM kills are not reported", "error", err)
			return
		}
	}
	a.oomWatcher = oom.New(oom.Config{
		Kernel: kernel, Kills: a.kills, Observed: a.pleg.Subscribe(), Newest: a.pleg.Newest, Known: a.pleg.Known, Relisted: a.pleg.Relisted(),
		Cgroup: a.facts.PodPath, Log: a.cfg.Log,
		Reporter: oom.Events{Recorder: a.recorder, Pod: a.lastPod, Refresh: a.pleg.Refresh},
	})
}
