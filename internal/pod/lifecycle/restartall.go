package lifecycle

import (
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// RestartAllTriggers returns the names of the containers whose exit requires a restart of all
// containers of the pod (KEP-5532), init containers first. Exits in an earlier sandbox do not
// count: all containers were restarted since.
func RestartAllTriggers(p *v1.Pod, s *pod.Status) []string {
	if len(s.Sandboxes) == 0 {
		return nil
	}
	var out []string
	for c := range pod.Containers(&p.Spec) {
		cs := s.FindContainer(c.Name)
		if c.RestartPolicy == nil || cs == nil || cs.State != pod.StateExited || cs.SandboxID != s.Sandboxes[0].ID || !ShouldStart(p, c, cs) {
			continue
		}
		if action, ok := MatchingRule(c, cs.ExitCode); ok && action == v1.ContainerRestartRuleActionRestartAllContainers {
			out = append(out, c.Name)
		}
	}
	return out
}
