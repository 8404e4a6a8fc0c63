package lifecycle

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// SandboxDecision is whether a pod needs a new sandbox.
type SandboxDecision struct {
	Create bool
	// Attempt is the number of the sandbox to create; without Create, that of the current one.
	Attempt uint32
	// OldID is the sandbox that the containers were in or are in; empty if there is none, or if its
	// network namespace mode has changed.
	OldID pod.SandboxID
	// Why is what is wrong with the current sandbox; empty without Create.
	Why string
}

// NeedsNewSandbox decides whether the pod needs a new sandbox. A missing IP address counts only
// without host network.
func NeedsNewSandbox(p *v1.Pod, s *pod.Status) SandboxDecision {
	if len(s.Sandboxes) == 0 {
		return SandboxDecision{Create: true, Why: "no sandbox"}
	}
	newest := &s.Sandboxes[0]
	next := SandboxDecision{Create: true, Attempt: newest.Attempt + 1, OldID: newest.ID}
	ready := 0
	for i := range s.Sandboxes {
		if s.Sandboxes[i].Ready {
			ready++
		}
	}
	switch {
	case ready > 1:
		next.Why = "more than one sandbox is ready"
	case !newest.Ready:
		next.Why = "sandbox is not ready"
	case newest.HostNetwork != p.Spec.HostNetwork:
		next.OldID, next.Why = "", "network namespace mode changed"
	case !newest.HostNetwork && len(newest.IPs) == 0:
		next.Why = "sandbox has no IP address"
	default:
		return SandboxDecision{Attempt: newest.Attempt, OldID: newest.ID}
	}
	return next
}

// EndsWithSandbox reports whether the pod has lost its sandbox and gets no other, so that
// containers that have not run never will: all of its regular containers have terminated
// permanently, or its restartPolicy is Never and containers of it have run, none of which restarts
// by its own policy.
func EndsWithSandbox(p *v1.Pod, s *pod.Status) bool {
	d := NeedsNewSandbox(p, s)
	if !d.Create {
		return false
	}
	never := d.Attempt > 0 && p.Spec.RestartPolicy == v1.RestartPolicyNever && anyRegularRan(p, s) && !restartsByItself(p, s)
	return never || RegularEnded(p, s)
}

// RegularEnded reports whether all regular containers have terminated permanently.
func RegularEnded(p *v1.Pod, s *pod.Status) bool {
	return !slices.ContainsFunc(p.Spec.Containers, func(c v1.Container) bool {
		cs := s.FindContainer(c.Name)
		return cs == nil || cs.State != pod.StateExited || IsRestartable(p, &c, cs.ExitCode)
	})
}

// anyRegularRan reports whether a regular container was ever started. Init containers and sidecars
// do not count: with them alone, the pod has not done anything yet, and would wait forever.
func anyRegularRan(p *v1.Pod, s *pod.Status) bool {
	return slices.ContainsFunc(p.Spec.Containers, func(c v1.Container) bool {
		cs := s.FindContainer(c.Name)
		return cs != nil && cs.State != pod.StateCreated
	})
}

// restartsByItself reports whether an exited regular container restarts by its own policy or rule,
// whatever the pod's.
func restartsByItself(p *v1.Pod, s *pod.Status) bool {
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		cs := s.FindContainer(c.Name)
		if c.RestartPolicy != nil && cs != nil && cs.State == pod.StateExited && ShouldStart(p, c, cs) {
			return true
		}
	}
	return false
}
