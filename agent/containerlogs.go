package agent

import (
	"berth/internal/containerlogs"
	"berth/internal/inotify"
)

// newContainerLogs builds what keeps the logs of containers within their limits.
func (a *Agent) newContainerLogs(l containerlogs.Limits) *containerlogs.Manager {
	watch := a.out.LogWrites
	if watch == nil {
		watch = func() (containerlogs.Writes, error) { return inotify.OpenOnce() }
	}
	return containerlogs.New(containerlogs.Config{
		Limits: l, Runtime: a.cri, Changed: a.pleg.Subscribe(), Newest: a.pleg.Newest, Watch: watch, Journal: a.journal, Log: a.cfg.Log,
	})
}
