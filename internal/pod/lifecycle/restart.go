package lifecycle

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// IsSidecar reports whether the init container is restartable: it keeps running beside the regular
// containers (KEP-753). It has no meaning for other kinds of containers.
func IsSidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// RestartPolicy returns the policy that holds for the container: its own if it has one (KEP-5307),
// else the pod's. Restart rules are not considered.
func RestartPolicy(p *v1.Pod, c *v1.Container) v1.RestartPolicy {
	if c.RestartPolicy != nil {
		return v1.RestartPolicy(*c.RestartPolicy)
	}
	return p.Spec.RestartPolicy
}

// ShouldStart reports whether a new incarnation of the container is to be started; cs is the newest
// one, nil when the runtime knows none. It holds for every kind of container: an init container
// that succeeded is not started again, an ephemeral one is started only once. It says nothing of
// order and back-off.
func ShouldStart(p *v1.Pod, c *v1.Container, cs *pod.ContainerStatus) bool {
	switch {
	case p.DeletionTimestamp != nil:
		return false
	case cs == nil:
		return true
	case isEphemeral(p, c), cs.State == pod.StateRunning:
		return false
	case cs.State != pod.StateExited:
		return true
	case isPlainInit(p, c):
		// Code 0 with a process killed for memory is a failure too, which OnFailure would not see.
		return InitFailed(cs) && (IsRestartable(p, c, cs.ExitCode) || RestartPolicy(p, c) != v1.RestartPolicyNever)
	default:
		return IsRestartable(p, c, cs.ExitCode)
	}
}

// IsRestartable reports whether a container that ended with the exit code may be restarted: the
// first restart rule that matches decides, else the restart policy. Rules count only beside a
// restart policy of the container's own (KEP-5307).
func IsRestartable(p *v1.Pod, c *v1.Container, exitCode int32) bool {
	if c.RestartPolicy != nil {
		if _, ok := MatchingRule(c, exitCode); ok {
			return true
		}
	}
	switch RestartPolicy(p, c) {
	case v1.RestartPolicyNever:
		return false
	case v1.RestartPolicyOnFailure:
		return exitCode != 0
	default: // Always is the default of the API
		return true
	}
}

// MatchingRule returns the action of the first restart rule that matches the exit code. Both
// actions that exist, Restart and RestartAllContainers, restart the container; unknown ones are
// skipped.
func MatchingRule(c *v1.Container, exitCode int32) (v1.ContainerRestartRuleAction, bool) {
	for i := range c.RestartPolicyRules {
		r := &c.RestartPolicyRules[i]
		if r.Action != v1.ContainerRestartRuleActionRestart && r.Action != v1.ContainerRestartRuleActionRestartAllContainers {
			continue
		}
		if r.ExitCodes == nil {
			continue
		}
		listed := slices.Contains(r.ExitCodes.Values, exitCode)
		switch r.ExitCodes.Operator {
		case v1.ContainerRestartRuleOnExitCodesOpIn:
			if listed {
				return r.Action, true
			}
		case v1.ContainerRestartRuleOnExitCodesOpNotIn:
			if !listed {
				return r.Action, true
			}
		}
	}
	return "", false
}

// isPlainInit reports whether c is an init container that runs to its end.
func isPlainInit(p *v1.Pod, c *v1.Container) bool {
	return !IsSidecar(c) && slices.ContainsFunc(p.Spec.InitContainers, func(i v1.Container) bool { return i.Name == c.Name })
}

func isEphemeral(p *v1.Pod, c *v1.Container) bool {
	return slices.ContainsFunc(p.Spec.EphemeralContainers, func(e v1.EphemeralContainer) bool { return e.Name == c.Name })
}
