package lifecycle

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// SandboxDecision is whether a pod needs a new sandbox.
type SandboxDecision struct {
	Create bool
	// Attempt numbers the sandbox to create; without Create it is the current one's number.
	Attempt uint32
	// OldID is the sandbox that the containers were in or are in; empty when there is none, or when
	// it is of no use because it is in another network namespace mode.
	OldID pod.SandboxID
	// Why says what is wrong with the current sandbox; empty without Create.
	Why string
}

// NeedsNewSandbox decides whether the pod can use its current sandbox. An address that is missing
// counts only in the pod's own network.
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

// EndsWithSandbox reports whether the pod has lost its sandbox and gets no other, so that what has
// not run yet never will: all of its regular containers have ended for good, or its restartPolicy
// is Never and containers of it have run, none of which is restarted by a policy of its own.
func EndsWithSandbox(p *v1.Pod, s *pod.Status) bool {
	d := NeedsNewSandbox(p, s)
	if !d.Create {
		return false
	}
	never := d.Attempt > 0 && p.Spec.RestartPolicy == v1.RestartPolicyNever && anyRegularRan(p, s) && !restartsByItself(p, s)
	return never || RegularEnded(p, s)
}

// RegularEnded reports whether all regular containers have ended for good.
func RegularEnded(p *v1.Pod, s *pod.Status) bool {
	return !slices.ContainsFunc(p.Spec.Containers, func(c v1.Container) bool {
		cs := s.FindContainer(c.Name)
		return cs == nil || cs.State != pod.StateExited || IsRestartable(p, &c, cs.ExitCode)
	})
}

// anyRegularRan reports whether a regular container was ever started. Init containers and sidecars
// do not matter: with them alone, the pod has not done anything yet, and would wait for ever.
func anyRegularRan(p *v1.Pod, s *pod.Status) bool {
	return slices.ContainsFunc(p.Spec.Containers, func(c v1.Container) bool {
		cs := s.FindContainer(c.Name)
		return cs != nil && cs.State != pod.StateCreated
	})
}

// restartsByItself reports whether a regular container that has ended is restarted by a policy or
// rule of its own, whatever the pod's.
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
