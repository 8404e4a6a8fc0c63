package stats

import (
	"path/filepath"

	"berth/internal/pod"
)

// LogUse is the disk usage of a container's logs.
type LogUse struct {
	UID                        pod.UID
	Namespace, Name, Container string
	Bytes                      uint64
}

// Logs returns the current size of running containers' logs, including rotated files and earlier
// incarnations.
func (c *Collector) Logs() []LogUse {
	var out []LogUse
	for _, s := range c.cfg.Observed() {
		dir := c.folders.logsOf(s.Namespace, s.Name, s.UID)
		for i := range s.Containers {
			ct := &s.Containers[i]
			if ct.State == pod.StateRunning && ct == s.FindContainer(ct.Name) {
				out = append(out, LogUse{s.UID, s.Namespace, s.Name, ct.Name, c.folders.logsIn(filepath.Join(dir, ct.Name)).Bytes})
			}
		}
	}
	return out
}
