package status

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
	"berth/internal/pod/allocation"
	"berth/internal/pod/lifecycle"
)

// Input is what a pod's status follows from. Generate changes nothing that it refers to.
type Input struct {
	Pod      *v1.Pod
	Observed pod.Status
	// Old is the newest status known: the manager's, else the API server's.
	Old v1.PodStatus
	// Actuated is Pod with the resources that its running containers have; nil, or Pod, unless it
	// is being resized. Resize is how far that has come.
	Actuated *v1.Pod
	Resize   allocation.Resize
	// Terminal: the worker has ended all containers for good.
	Terminal bool
	// MountsMissing: volumes of the pod are not mounted yet, so that no container can start
	// although there is a sandbox.
	MountsMissing bool
	// StartErrors are the last start errors by container name; a container that was started since
	// has none.
	StartErrors map[string]lifecycle.StartError
	// Probes are the verdicts on the containers of Observed.
	Probes pod.ProbeVerdicts
	// ResourceHealth is what is known of the devices of containers, by the containers' names
	// (KEP-4680).
	ResourceHealth map[string][]v1.ResourceStatus
	// RuntimeName is the prefix of container ids: "containerd" makes "containerd://<id>".
	RuntimeName string
	// HostIPs are the node's internal addresses, primary first; empty when not known.
	HostIPs []string
	// Now is compared with the end of activeDeadlineSeconds; nothing else depends on the time.
	Now time.Time
	// Began is when Old.StartTime was by the clock of Now, which may have been set since; zero is
	// Old.StartTime itself.
	Began time.Time

	hasInitialized bool // what Generate finds of Pod and Observed
}

// Generate returns the pod's status. Times of condition changes are left to Manager.Set, which
// knows them. A status that was generated from its own output as Old is the same again.
func Generate(in Input) v1.PodStatus {
	p := in.Pod
	s := v1.PodStatus{
		ObservedGeneration: p.Generation,
		StartTime:          in.Old.StartTime.DeepCopy(),
		QOSClass:           qosClass(in),

		// Others write these; they are passed through so that a reader of the agent sees them too.
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

// setPhase sets phase, reason and message. A terminal phase stays; reason and message stay as long
// as the phase does. A pod that was active for longer than it may fails.
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

// deadline returns when the pod's activeDeadlineSeconds end; zero when they do not, or have not
// begun.
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

// onClockOf returns a time that was written down by the clock of now, which goes on evenly when the
// host's is set. What is in the future was written before that was set back, and counts as now.
func onClockOf(now, written time.Time) time.Time { return now.Add(-max(now.Sub(written), 0)) }

// qosClass returns the class that the pod was given at first: it never changes.
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
