package stats

import (
	"path/filepath"

	"berth/internal/pod"
)

// LogUse is what the logs of a container take.
type LogUse struct {
	UID                        pod.UID
	Namespace, Name, Container string
	Bytes                      uint64
}

// Logs returns what the logs of containers that run take now, with the parts that were rotated, and
// those of earlier incarnations.
func (c *Collector) Logs() []LogUse {
	var out []LogUse
	for _, s := range c.Observed() {
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
