package status

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
	"berth/internal/pod/allocation"
	"berth/internal/pod/lifecycle"
)

// Input is the input of Generate, which does not modify what it refers to.
type Input struct {
	Pod      *v1.Pod
	Observed pod.Status
	// Old is the newest known status: the manager's, else the API server's.
	Old v1.PodStatus
	// Actuated is Pod with the actual resources of its running containers; nil, or Pod, unless it
	// is being resized. Resize is the progress.
	Actuated *v1.Pod
	Resize   allocation.Resize
	// Terminal is true if the worker has stopped all containers for good.
	Terminal bool
	// MountsMissing is true while volumes are not mounted, so that no container can start even with
	// a sandbox.
	MountsMissing bool
	// StartErrors are the last start errors by container name; a container that has started since
	// has none.
	StartErrors map[string]lifecycle.StartError
	// Probes are the probe results of the containers of Observed.
	Probes pod.ProbeVerdicts
	// ResourceHealth is the health of the containers' devices, by container name (KEP-4680).
	ResourceHealth map[string][]v1.ResourceStatus
	// RuntimeName is the prefix of container IDs: "containerd" makes "containerd://<id>".
	RuntimeName string
	// HostIPs are the node's internal addresses, primary first; empty if unknown.
	HostIPs []string
	// Now is compared with the deadline of activeDeadlineSeconds; nothing else depends on the time.
	Now time.Time
	// Began is Old.StartTime on the clock of Now, which may have been set since; zero stands for
	// Old.StartTime itself.
	Began time.Time

	hasInitialized bool // computed by Generate from Pod and Observed
}

// Generate returns the pod's status. Manager.Set sets the transition times of conditions. Generate
// is idempotent: with its own output as Old, it returns the same status.
func Generate(in Input) v1.PodStatus {
	p := in.Pod
	s := v1.PodStatus{
		ObservedGeneration: p.Generation,
		StartTime:          in.Old.StartTime.DeepCopy(),
		QOSClass:           qosClass(in),

		// Other owners write these; they are passed on for readers of the agent's statuses.
		NominatedNodeName:                    p.Status.NominatedNodeName,
		ResourceClaimStatuses:                p.Status.ResourceClaimStatuses,
		ExtendedResourceClaimStatus:          p.Status.ExtendedResourceClaimStatus,
		NodeAllocatableResourceClaimStatuses: p.Status.NodeAllocatableResourceClaimStatuses,
	}
	s = *s.DeepCopy()
	in.hasInitialized = lifecycle.HasInitialized(p, &in.Observed)
	s.InitContainerStatuses = containerStatuses(in, p.Spec.InitContainers, in.Old.InitContainerStatuses, initContainer)
	s.ContainerStatuses = containerStatuses(in, p.Spec.Containers, in.Old.ContainerStatuses, regularContainer)
	s.EphemeralContainerStatuses = containerStatuses(in, ephemeralSpecs(p), in.Old.EphemeralContainerStatuses, ephemeralContainer)
	setPhase(&s, in)
	setIPs(&s, in)
	setPodResources(&s, in)
	s.Conditions = conditions(in, &s)
	return s
}

const deadlineExceeded = "Pod was active on the node longer than the specified deadline"

// setPhase sets phase, reason and message. A terminal phase is final; reason and message stay as
// long as the phase. A pod whose active deadline is exceeded fails.
func setPhase(s *v1.PodStatus, in Input) {
	s.Phase = lifecycle.Phase(in.Pod, s, lifecycle.PhaseFacts{
		Terminal: in.Terminal, HasInitialized: in.hasInitialized, EndsWithSandbox: lifecycle.EndsWithSandbox(in.Pod, &in.Observed),
	})
	for _, known := range []*v1.PodStatus{&in.Old, &in.Pod.Status} {
		if pod.IsTerminal(known.Phase) {
			s.Phase, s.Reason, s.Message = known.Phase, known.Reason, known.Message
			return
		}
	}
	switch d := deadline(in); {
	case !pod.IsTerminal(s.Phase) && !d.IsZero() && !in.Now.Before(d):
		s.Phase, s.Reason, s.Message = v1.PodFailed, lifecycle.DeadlineExceeded, deadlineExceeded
	case s.Phase == in.Old.Phase:
		s.Reason, s.Message = in.Old.Reason, in.Old.Message
	}
}

// deadline returns the end of the pod's activeDeadlineSeconds; zero if there is none, or the pod
// has not started.
func deadline(in Input) time.Time {
	seconds := in.Pod.Spec.ActiveDeadlineSeconds
	if seconds == nil || in.Old.StartTime == nil {
		return time.Time{}
	}
	began := in.Began
	if began.IsZero() {
		began = in.Old.StartTime.Time
	}
	return began.Add(time.Duration(*seconds) * time.Second)
}

// onClockOf converts a persisted time to the monotonic clock of now. A time in the future was
// written before the clock was set back, and counts as now.
func onClockOf(now, written time.Time) time.Time { return now.Add(-max(now.Sub(written), 0)) }

// qosClass returns the pod's initial QoS class, which never changes.
func qosClass(in Input) v1.PodQOSClass {
	switch {
	case in.Old.QOSClass != "":
		return in.Old.QOSClass
	case in.Pod.Status.QOSClass != "":
		return in.Pod.Status.QOSClass
	default:
		return cgroups.QOSClass(in.Pod)
	}
}

func ephemeralSpecs(p *v1.Pod) []v1.Container {
	specs := make([]v1.Container, 0, len(p.Spec.EphemeralContainers))
	for i := range p.Spec.EphemeralContainers {
		specs = append(specs, v1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	return specs
}
