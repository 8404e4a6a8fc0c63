package status

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

const (
	podCompleted               = "PodCompleted"
	podFailed                  = "PodFailed"
	containersNotReady         = "ContainersNotReady"
	containersNotInitialized   = "ContainersNotInitialized"
	readinessGatesNotReady     = "ReadinessGatesNotReady"
	restartAllContainersBegun  = "RestartAllContainersStarted"
	restartAllContainersDetail = "container exited with restart policy rule"
)

// ownedConditions are the conditions that Generate derives, in the order in which they are
// reported.
var ownedConditions = []v1.PodConditionType{
	v1.PodReadyToStartContainers, v1.PodInitialized, v1.PodReady, v1.ContainersReady, v1.PodScheduled, v1.AllContainersRestarting,
	v1.PodResizePending, v1.PodResizeInProgress,
}

// keptConditions are set by other components of the agent and preserved.
var keptConditions = []v1.PodConditionType{v1.DisruptionTarget}

// conditions returns the pod's conditions; s has the phase and the container statuses. Conditions
// of other owners come from the API object, where their owners remove them.
func conditions(in Input, s *v1.PodStatus) []v1.PodCondition {
	p := in.Pod
	foreign := foreignConditions(p)
	containers := containersReady(p, s)
	out := []v1.PodCondition{
		readyToStart(in), initialized(in, s), podReady(p, foreign, containers), containers,
		newCondition(p, v1.PodScheduled),
	}
	if c, ok := allRestarting(in); ok {
		out = append(out, c)
	}
	if !pod.IsTerminal(s.Phase) {
		out = append(out, resizeConditions(in.Resize)...)
	}
	for _, t := range keptConditions {
		if c := findCondition(in.Old.Conditions, t); c != nil {
			out = append(out, *c.DeepCopy())
		} else if c := findCondition(p.Status.Conditions, t); c != nil {
			out = append(out, *c.DeepCopy())
		}
	}
	return append(out, foreign...)
}

func foreignConditions(p *v1.Pod) []v1.PodCondition {
	var out []v1.PodCondition
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		if !slices.Contains(ownedConditions, c.Type) && !slices.Contains(keptConditions, c.Type) {
			out = append(out, *c.DeepCopy())
		}
	}
	return out
}

func newCondition(p *v1.Pod, t v1.PodConditionType) v1.PodCondition {
	return v1.PodCondition{Type: t, Status: v1.ConditionTrue, ObservedGeneration: p.Generation}
}

// readyToStart reports whether the sandbox is ready and the volumes are mounted.
func readyToStart(in Input) v1.PodCondition {
	c := newCondition(in.Pod, v1.PodReadyToStartContainers)
	if in.MountsMissing || lifecycle.NeedsNewSandbox(in.Pod, &in.Observed).Create {
		c.Status = v1.ConditionFalse
	}
	return c
}

// initialized reports whether the init containers are done. Once True, it stays True: a later run
// of them, after a reboot or a restart of all containers, does not reset it.
func initialized(in Input, s *v1.PodStatus) v1.PodCondition {
	p := in.Pod
	c := newCondition(p, v1.PodInitialized)
	if s.Phase == v1.PodSucceeded {
		c.Reason = podCompleted
		return c
	}
	if old := findCondition(in.Old.Conditions, v1.PodInitialized); old != nil && old.Status == v1.ConditionTrue {
		return c
	}
	if anyRegularRan(s) {
		return c
	}
	var incomplete []string
	for i := range p.Spec.InitContainers {
		if spec := &p.Spec.InitContainers[i]; !isDone(spec, lifecycle.FindStatus(s.InitContainerStatuses, spec.Name)) {
			incomplete = append(incomplete, spec.Name)
		}
	}
	return falseIfAny(c, incomplete, containersNotInitialized, "containers with incomplete status")
}

// isDone reports whether this init container no longer blocks the next container.
func isDone(c *v1.Container, cs *v1.ContainerStatus) bool {
	switch {
	case cs == nil:
		return false
	case lifecycle.IsSidecar(c):
		return cs.Started != nil && *cs.Started
	default:
		return cs.Ready
	}
}

func anyRegularRan(s *v1.PodStatus) bool {
	return slices.ContainsFunc(s.ContainerStatuses, func(cs v1.ContainerStatus) bool {
		return cs.State.Running != nil || cs.State.Terminated != nil || cs.LastTerminationState.Terminated != nil
	})
}

// containersReady reports whether every regular container and sidecar is ready.
func containersReady(p *v1.Pod, s *v1.PodStatus) v1.PodCondition {
	c := newCondition(p, v1.ContainersReady)
	switch s.Phase {
	case v1.PodSucceeded:
		c.Status, c.Reason = v1.ConditionFalse, podCompleted
		return c
	case v1.PodFailed:
		c.Status, c.Reason = v1.ConditionFalse, podFailed
		return c
	}
	var unready []string
	check := func(name string, list []v1.ContainerStatus) {
		if cs := lifecycle.FindStatus(list, name); cs == nil || !cs.Ready {
			unready = append(unready, name)
		}
	}
	for i := range p.Spec.InitContainers {
		if spec := &p.Spec.InitContainers[i]; lifecycle.IsSidecar(spec) {
			check(spec.Name, s.InitContainerStatuses)
		}
	}
	for i := range p.Spec.Containers {
		check(p.Spec.Containers[i].Name, s.ContainerStatuses)
	}
	return falseIfAny(c, unready, containersNotReady, "containers with unready status")
}

// falseIfAny sets the condition to False if there are names, and lists them in the message.
func falseIfAny(c v1.PodCondition, names []string, reason, what string) v1.PodCondition {
	if len(names) > 0 {
		c.Status, c.Reason, c.Message = v1.ConditionFalse, reason, fmt.Sprintf("%s: %s", what, names)
	}
	return c
}

// podReady reports whether the pod can receive traffic: its containers are ready and every
// readiness gate is True (KEP-580).
func podReady(p *v1.Pod, others []v1.PodCondition, containers v1.PodCondition) v1.PodCondition {
	c := containers
	c.Type = v1.PodReady
	if c.Status != v1.ConditionTrue {
		return c
	}
	var messages []string
	for _, gate := range p.Spec.ReadinessGates {
		switch g := findCondition(others, gate.ConditionType); {
		case g == nil:
			messages = append(messages, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		case g.Status != v1.ConditionTrue:
			messages = append(messages, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %s", gate.ConditionType, g.Status))
		}
	}
	if len(messages) > 0 {
		c.Status, c.Reason, c.Message = v1.ConditionFalse, readinessGatesNotReady, strings.Join(messages, ", ")
	}
	return c
}

// allRestarting reports whether a container's exit triggers a restart of all; ok is false for pods
// without such a rule (KEP-5532).
func allRestarting(in Input) (c v1.PodCondition, ok bool) {
	c = v1.PodCondition{Type: v1.AllContainersRestarting, Status: v1.ConditionFalse}
	if !slices.ContainsFunc(in.Pod.Spec.InitContainers, hasRestartAllRule) && !slices.ContainsFunc(in.Pod.Spec.Containers, hasRestartAllRule) {
		return c, false
	}
	if !in.Terminal && len(lifecycle.RestartAllTriggers(in.Pod, &in.Observed)) > 0 {
		c.Status, c.Reason, c.Message = v1.ConditionTrue, restartAllContainersBegun, restartAllContainersDetail
	}
	return c, true
}

func hasRestartAllRule(c v1.Container) bool {
	return c.RestartPolicy != nil && slices.ContainsFunc(c.RestartPolicyRules, func(r v1.ContainerRestartRule) bool {
		return r.Action == v1.ContainerRestartRuleActionRestartAllContainers
	})
}

func findCondition(list []v1.PodCondition, t v1.PodConditionType) *v1.PodCondition {
	for i := range list {
		if list[i].Type == t {
			return &list[i]
		}
	}
	return nil
}
