package lifecycle

import (
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// InitFailed reports whether an exited init container failed: its exit code is not 0, or the kernel
// killed one of its processes for want of memory.
func InitFailed(cs *pod.ContainerStatus) bool { return cs.ExitCode != 0 || cs.Reason == OOMKilled }

// HasInitialized reports whether initialization has been passed, which shows by a regular container
// of the newest sandbox that is created, is running or has exited. One of an older sandbox does not
// count: in a new sandbox, as after a reboot, the init containers run again.
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
