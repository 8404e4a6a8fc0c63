package lifecycle

import (
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// InitFailed reports whether an exited init container failed: its exit code is not 0, or one of its
// processes was OOM-killed.
func InitFailed(cs *pod.ContainerStatus) bool { return cs.ExitCode != 0 || cs.Reason == OOMKilled }

// HasInitialized reports whether initialization is complete: a regular container of the newest
// sandbox is created, running or exited. Containers of older sandboxes do not count: in a new
// sandbox, as after a reboot, the init containers run again.
func HasInitialized(p *v1.Pod, s *pod.Status) bool {
	for i := range p.Spec.Containers {
		cs := s.FindContainer(p.Spec.Containers[i].Name)
		switch {
		case cs == nil || len(s.Sandboxes) > 0 && cs.SandboxID != s.Sandboxes[0].ID:
		case cs.State == pod.StateCreated, cs.State == pod.StateRunning:
			return true
		case cs.State == pod.StateExited && len(s.Sandboxes) > 0:
			return true
		}
	}
	return false
}
