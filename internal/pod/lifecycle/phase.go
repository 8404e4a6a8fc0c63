package lifecycle

import (
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// PhaseFacts is the input of Phase besides the pod and the statuses of its containers.
type PhaseFacts struct {
	// Terminal: the worker has stopped all containers permanently.
	Terminal bool
	// HasInitialized is HasInitialized of the observed state that the statuses were made from.
	HasInitialized bool
	// EndsWithSandbox is EndsWithSandbox of that state.
	EndsWithSandbox bool
}

// Phase returns the phase that follows from the statuses of the pod's containers (Kubernetes
// documentation, "Pod Lifecycle"). It ignores the phase in s: the caller must not leave a terminal
// phase.
//
//	Failed     an init container failed permanently, or all containers have terminated,
//	           at least one of them in failure or before it ran
//	Pending    init containers run, or a container has not run yet
//	Running    a container runs, or is to be restarted
//	Succeeded  all containers have terminated permanently with code 0
func Phase(p *v1.Pod, s *v1.PodStatus, f PhaseFacts) v1.PodPhase {
	var n phaseCounts
	n.addInit(p, s)
	if f.EndsWithSandbox { // init containers and sidecars can no longer make progress
		n = phaseCounts{initFailed: n.initFailed, running: n.running}
	}
	n.addRegular(p, s)
	switch {
	case n.initFailed > 0:
		return v1.PodFailed
	case n.initPending > 0, n.sidecarPending > 0 && !f.HasInitialized:
		return v1.PodPending
	case n.waiting > 0 && n.running == 0 && f.EndsWithSandbox:
		return v1.PodFailed
	case n.waiting > 0:
		return v1.PodPending
	case n.unknown > 0:
		return v1.PodPending
	case n.running > 0:
		return v1.PodRunning
	case n.stopped == 0:
		return v1.PodPending
	case f.Terminal && !pod.IsStatic(p): // a stopped static pod may start again with its manifest
	case n.restartable > 0:
		return v1.PodRunning
	}
	if n.succeeded == n.stopped {
		return v1.PodSucceeded
	}
	return v1.PodFailed
}

// phaseCounts counts containers of the spec.
type phaseCounts struct {
	initPending, initFailed, sidecarPending int
	// running, waiting (never ran) and unknown (without a status) are regular containers and
	// sidecars.
	running, waiting, unknown int
	// stopped are terminated regular containers, restartable those of them that may run again,
	// succeeded those in state terminated with code 0.
	stopped, restartable, succeeded int
}

func (n *phaseCounts) addInit(p *v1.Pod, s *v1.PodStatus) {
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		cs := FindStatus(s.InitContainerStatuses, c.Name)
		if IsSidecar(c) {
			n.addSidecar(cs)
			continue
		}
		switch last := lastEnd(cs); {
		case cs == nil, cs.State.Running != nil, last == nil, beginsAnew(cs):
			n.initPending++
		case last.ExitCode == 0:
		case IsRestartable(p, c, last.ExitCode):
			n.initPending++
		default:
			n.initFailed++
		}
	}
}

func (n *phaseCounts) addSidecar(cs *v1.ContainerStatus) {
	switch {
	case cs == nil:
		n.unknown++
	case cs.State.Running != nil:
		n.running++
		if cs.Started == nil || !*cs.Started {
			n.sidecarPending++
		}
	case lastEnd(cs) == nil, beginsAnew(cs):
		n.waiting++
		n.sidecarPending++
	}
}

func (n *phaseCounts) addRegular(p *v1.Pod, s *v1.PodStatus) {
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		cs := FindStatus(s.ContainerStatuses, c.Name)
		switch last := lastEnd(cs); {
		case cs == nil:
			n.unknown++
		case cs.State.Running != nil:
			n.running++
		case last == nil, beginsAnew(cs):
			n.waiting++
		default:
			n.stopped++
			if IsRestartable(p, c, last.ExitCode) {
				n.restartable++
			}
			if cs.State.Terminated != nil && last.ExitCode == 0 {
				n.succeeded++
			}
		}
	}
}

// beginsAnew reports whether the container was removed to be restarted with all others, whatever
// its policy. The pod is pending meanwhile (KEP-5532).
func beginsAnew(cs *v1.ContainerStatus) bool {
	return cs.State.Waiting != nil && cs.State.Waiting.Reason == RestartingAllContainers
}

// lastEnd returns the last termination of the container: its current one, or the one before the
// start that it waits for; nil if there was none.
func lastEnd(cs *v1.ContainerStatus) *v1.ContainerStateTerminated {
	switch {
	case cs == nil:
		return nil
	case cs.State.Terminated != nil:
		return cs.State.Terminated
	default:
		return cs.LastTerminationState.Terminated
	}
}

// FindStatus returns the named container's status, or nil.
func FindStatus(list []v1.ContainerStatus, name string) *v1.ContainerStatus {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}
