package lifecycle

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// IsSidecar reports whether the init container is a sidecar: it keeps running beside the regular
// containers (KEP-753). It must not be called for other types of containers.
func IsSidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// RestartPolicy returns the container's effective policy: its own if it has one (KEP-5307), else
// the pod's. Restart rules are not considered.
func RestartPolicy(p *v1.Pod, c *v1.Container) v1.RestartPolicy {
	if c.RestartPolicy != nil {
		return v1.RestartPolicy(*c.RestartPolicy)
	}
	return p.Spec.RestartPolicy
}

// ShouldStart reports whether a new incarnation of the container is to be started; cs is the newest
// one, nil if the runtime has none. It applies to every type of container: an init container that
// succeeded is not started again, an ephemeral one is started only once. It does not consider order
// and back-off.
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
		// Exit code 0 with an OOM-killed process is also a failure, which OnFailure would miss.
		return InitFailed(cs) && (IsRestartable(p, c, cs.ExitCode) || RestartPolicy(p, c) != v1.RestartPolicyNever)
	default:
		return IsRestartable(p, c, cs.ExitCode)
	}
}

// IsRestartable reports whether a container that exited with the code may be restarted: the first
// matching restart rule decides, else the restart policy. Rules apply only with a restart policy of
// the container (KEP-5307).
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
// existing actions, Restart and RestartAllContainers, restart the container; unknown ones are
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

func isPlainInit(p *v1.Pod, c *v1.Container) bool {
	return !IsSidecar(c) && slices.ContainsFunc(p.Spec.InitContainers, func(i v1.Container) bool { return i.Name == c.Name })
}

func isEphemeral(p *v1.Pod, c *v1.Container) bool {
	return slices.ContainsFunc(p.Spec.EphemeralContainers, func(e v1.EphemeralContainer) bool { return e.Name == c.Name })
}
