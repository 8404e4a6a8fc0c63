package status

import (
	"path"
	"slices"
	"strings"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

// Messages of containers whose exit was not observed.
const (
	lostAtTermination = "The container could not be located when the pod was terminated"
	lostWhileRunning  = "The container could not be located when the pod was deleted.  The container used to be Running"
)

type containerKind int

const (
	initContainer containerKind = iota
	regularContainer
	ephemeralContainer
)

// containerStatuses returns the statuses of the containers of one kind: init containers in the
// order of the spec, others by name.
func containerStatuses(in Input, specs []v1.Container, old []v1.ContainerStatus, kind containerKind) []v1.ContainerStatus {
	if len(specs) == 0 {
		return nil
	}
	out := make([]v1.ContainerStatus, 0, len(specs))
	for i := range specs {
		b := containerBuilder{
			in: in, spec: &specs[i], kind: kind,
			old: lifecycle.FindStatus(old, specs[i].Name),
		}
		b.newest, b.previous = incarnations(&in.Observed, specs[i].Name)
		out = append(out, b.build())
	}
	if kind != initContainer {
		slices.SortFunc(out, func(a, b v1.ContainerStatus) int { return strings.Compare(a.Name, b.Name) })
	}
	return out
}

// incarnations returns the container's newest two incarnations; nil if the runtime does not have
// them.
func incarnations(s *pod.Status, name string) (newest, previous *pod.ContainerStatus) {
	for i := range s.Containers {
		cs := &s.Containers[i]
		switch {
		case cs.Name != name:
		case newest == nil:
			newest = cs
		default:
			return newest, cs
		}
	}
	return newest, nil
}

type containerBuilder struct {
	in               Input
	spec             *v1.Container
	kind             containerKind
	old              *v1.ContainerStatus // nil without one
	newest, previous *pod.ContainerStatus
}

func (b *containerBuilder) build() v1.ContainerStatus {
	cs := b.initial()
	if b.newest == nil {
		b.fillMissing(&cs)
	} else {
		b.fillObserved(&cs)
	}
	b.applyStartError(&cs)
	b.fillStartedReady(&cs)
	cs.VolumeMounts = volumeMounts(b.spec, b.newest)
	b.fillResources(&cs)
	if b.kind == regularContainer {
		cs.AllocatedResourcesStatus = b.in.ResourceHealth[b.spec.Name]
	}
	return cs
}

// initial returns the status of a container that the runtime does not have: the last terminated
// state, else waiting.
func (b *containerBuilder) initial() v1.ContainerStatus {
	if b.old != nil && b.old.State.Terminated != nil {
		return *b.old.DeepCopy()
	}
	cs := v1.ContainerStatus{
		Name:  b.spec.Name,
		Image: b.spec.Image,
		State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: lifecycle.ContainerCreating}},
	}
	if len(b.in.Pod.Spec.InitContainers) > 0 {
		cs.State.Waiting.Reason = lifecycle.PodInitializing
	}
	if b.old != nil {
		cs.RestartCount = b.old.RestartCount
		cs.LastTerminationState = *b.old.LastTerminationState.DeepCopy()
	}
	return cs
}

// fillMissing sets the state of a container that the runtime does not have.
func (b *containerBuilder) fillMissing(cs *v1.ContainerStatus) {
	if b.restartsWithAll() {
		b.fillRestarting(cs)
		return
	}
	if b.isPlainInit() && b.in.hasInitialized {
		t := cs.State.Terminated
		if t != nil && t.ExitCode == 0 {
			return
		}
		if t != nil {
			cs.LastTerminationState = cs.State
		}
		// Later containers exist only if it succeeded; it has been removed since.
		cs.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Reason: lifecycle.Completed}}
		return
	}
	if cs.State.Waiting == nil {
		return
	}
	if b.old != nil && b.old.State.Running != nil && cs.LastTerminationState.Terminated == nil {
		// Without a last state, the pod would look as if it had never run, and its phase would
		// return to Pending.
		cs.LastTerminationState.Terminated = lostState(b.old, lostWhileRunning)
		if b.in.Pod.DeletionTimestamp == nil {
			cs.RestartCount++
		}
	}
}

// restartsWithAll reports whether the container was removed to be restarted with all others of the
// pod, according to the last pass or, after a restart of the agent, the old status.
func (b *containerBuilder) restartsWithAll() bool {
	switch {
	case b.in.Terminal || b.kind == ephemeralContainer:
		return false
	case b.in.StartErrors[b.spec.Name].Reason == lifecycle.RestartingAllContainers:
		return true
	case b.old == nil:
		return false
	case b.old.State.Waiting != nil:
		return b.old.State.Waiting.Reason == lifecycle.RestartingAllContainers
	case b.old.State.Terminated != nil && b.old.State.Terminated.ContainerID == "":
		return false // from fillMissing: removed before the restart of all began
	}
	c := findCondition(b.in.Old.Conditions, v1.AllContainersRestarting)
	return c != nil && c.Status == v1.ConditionTrue
}

// fillRestarting sets the state of a container that was removed to be restarted with all others. A
// running one was killed; its next incarnation has the next restart count.
func (b *containerBuilder) fillRestarting(cs *v1.ContainerStatus) {
	switch {
	case b.old != nil && b.old.State.Running != nil:
		t := lostState(b.old, "")
		t.Reason = lifecycle.RestartingAllContainers
		cs.LastTerminationState = v1.ContainerState{Terminated: t}
	case cs.State.Terminated != nil:
		cs.LastTerminationState = cs.State
	}
	cs.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: lifecycle.RestartingAllContainers}}
	cs.ContainerID, cs.ImageID, cs.Image, cs.User = "", "", b.spec.Image, nil
}

// fillObserved sets the observed state of the newest incarnation, and the exit of the previous one.
func (b *containerBuilder) fillObserved(cs *v1.ContainerStatus) {
	n := b.newest
	cs.RestartCount = max(cs.RestartCount, int32(n.Attempt))
	var state v1.ContainerState
	switch n.State {
	case pod.StateCreated:
		state.Waiting = &v1.ContainerStateWaiting{}
	case pod.StateRunning:
		state.Running = &v1.ContainerStateRunning{StartedAt: metav1.NewTime(n.StartedAt)}
	case pod.StateExited:
		state.Terminated = b.terminated(n)
	case pod.StateUnknown:
		switch {
		case b.knownEnd() != nil:
			state.Terminated = b.knownEnd()
		case b.old != nil && b.old.State.Running != nil:
			state.Terminated = lostState(b.old, lostAtTermination)
			state.Terminated.ContainerID = b.id(n.ID)
			cs.RestartCount++
		default:
			return // the state is unknown
		}
	}
	cs.State, cs.LastTerminationState = state, v1.ContainerState{Terminated: b.lastEnd()}
	cs.ContainerID, cs.Image, cs.ImageID, cs.User = b.id(n.ID), b.image(), n.ImageRef, userOf(n)
}

// image returns the full image name of the newest incarnation. The runtime returns any name of an
// image; the name in the pod's spec is reported instead.
//
// Differs from the kubelet, which reports the runtime's name.
func (b *containerBuilder) image() string {
	n := b.newest
	switch {
	case n.Hash == lifecycle.ContainerHash(b.spec):
		if name := fullImageName(b.spec.Image); name != "" {
			return name
		}
	case b.old != nil && b.old.ContainerID == b.id(n.ID) && b.old.Image != "":
		return b.old.Image // the image in the spec has changed since
	}
	return n.Image
}

// fullImageName returns the name of an image with registry and digest or tag, as the runtime stores
// it; "" for an ID or an invalid name.
func fullImageName(name string) string {
	if strings.Trim(strings.TrimPrefix(name, "sha256:"), "0123456789abcdef") == "" {
		return "" // an ID, or a prefix of one
	}
	ref, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return ""
	}
	if digested, ok := ref.(reference.Digested); ok {
		return reference.TrimNamed(ref).String() + "@" + digested.Digest().String()
	}
	return reference.TagNameOnly(ref).String()
}

// oldEnds returns the exits in the old status, newest first.
func (b *containerBuilder) oldEnds() []*v1.ContainerStateTerminated {
	var out []*v1.ContainerStateTerminated
	if b.old != nil {
		for _, t := range []*v1.ContainerStateTerminated{b.old.State.Terminated, b.old.LastTerminationState.Terminated} {
			if t != nil {
				out = append(out, t)
			}
		}
	}
	return out
}

// knownEnd returns the newest incarnation's exit from the old status, for when the runtime no
// longer has it; nil if it is not known to have exited. It is the last state while a start error is
// reported, and the state otherwise.
func (b *containerBuilder) knownEnd() *v1.ContainerStateTerminated {
	for _, t := range b.oldEnds() {
		if t.ContainerID == b.id(b.newest.ID) {
			return t.DeepCopy()
		}
	}
	return nil
}

// lastEnd returns the exit of the incarnation before the newest: from the runtime, or from the old
// status if it has been removed; nil if there was none.
func (b *containerBuilder) lastEnd() *v1.ContainerStateTerminated {
	if b.previous != nil && b.previous.State == pod.StateExited {
		return b.terminated(b.previous)
	}
	for _, t := range b.oldEnds() {
		if t.ContainerID != b.id(b.newest.ID) {
			return t.DeepCopy()
		}
	}
	return nil
}

func (b *containerBuilder) terminated(cs *pod.ContainerStatus) *v1.ContainerStateTerminated {
	return &v1.ContainerStateTerminated{
		ExitCode:    cs.ExitCode,
		Reason:      cs.Reason,
		Message:     cs.Message,
		StartedAt:   metav1.NewTime(cs.StartedAt),
		FinishedAt:  metav1.NewTime(cs.FinishedAt),
		ContainerID: b.id(cs.ID),
	}
}

// lostState returns the terminated state of a container whose exit was not observed.
func lostState(old *v1.ContainerStatus, message string) *v1.ContainerStateTerminated {
	t := &v1.ContainerStateTerminated{
		Reason: lifecycle.ContainerStatusUnknown, Message: message, ExitCode: lifecycle.UnknownExitCode, ContainerID: old.ContainerID,
	}
	if old.State.Running != nil {
		t.StartedAt = old.State.Running.StartedAt
	}
	return t
}

// applyStartError sets the reason why a container that should run does not.
func (b *containerBuilder) applyStartError(cs *v1.ContainerStatus) {
	e, ok := b.in.StartErrors[b.spec.Name]
	if !ok || b.in.Terminal || !lifecycle.ShouldStart(b.in.Pod, b.spec, b.newest) {
		return
	}
	if t := cs.State.Terminated; t != nil {
		if b.isPlainInit() && t.ExitCode == 0 {
			return
		}
		cs.LastTerminationState = cs.State
	}
	if b.newest == nil || cs.ContainerID != b.id(b.newest.ID) { // ID and image are those of the exited container, now in the last state
		cs.ContainerID, cs.ImageID, cs.Image, cs.User = "", "", b.spec.Image, nil
	}
	cs.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: e.Reason, Message: e.Message}}
}

// fillStartedReady sets started and ready. Ephemeral containers are never started or ready.
func (b *containerBuilder) fillStartedReady(cs *v1.ContainerStatus) {
	cs.Started, cs.Ready = nil, false
	if b.kind == ephemeralContainer {
		return
	}
	running := cs.State.Running != nil
	started := running && b.hasStarted(cs)
	cs.Started = &started
	if b.isPlainInit() {
		cs.Ready = cs.State.Terminated != nil && cs.State.Terminated.ExitCode == 0
		return
	}
	cs.Ready = started && (b.spec.ReadinessProbe == nil || b.in.Probes.Readiness[b.newest.ID] == pod.ProbeSuccess)
}

// hasStarted reports whether a running container has passed its startup probe. An incarnation that
// has started stays so, so that a prober without its checkpoint does not make a serving container
// unready.
func (b *containerBuilder) hasStarted(cs *v1.ContainerStatus) bool {
	if b.spec.StartupProbe == nil {
		return true
	}
	if b.old != nil && b.old.ContainerID == cs.ContainerID && b.old.Started != nil && *b.old.Started {
		return true
	}
	return b.in.Probes.Startup[b.newest.ID] == pod.ProbeSuccess
}

func (b *containerBuilder) isPlainInit() bool {
	return b.kind == initContainer && !lifecycle.IsSidecar(b.spec)
}

// id returns the container ID in the form of the API.
func (b *containerBuilder) id(id pod.ContainerID) string {
	return b.in.RuntimeName + "://" + string(id)
}

func userOf(cs *pod.ContainerStatus) *v1.ContainerUser {
	if !cs.HasUser {
		return nil
	}
	return &v1.ContainerUser{Linux: &v1.LinuxContainerUser{
		UID: cs.UserUID, GID: cs.UserGID, SupplementalGroups: append([]int64(nil), cs.SupplementalGroups...),
	}}
}

// volumeMounts returns the mounts of the spec. Recursive read-only is reported only for read-only
// mounts: the actual value if the spec has IfPossible. The status of an image volume is its image
// at container creation. observed is nil while the runtime has no container.
func volumeMounts(c *v1.Container, observed *pod.ContainerStatus) []v1.VolumeMountStatus {
	var out []v1.VolumeMountStatus
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		s := v1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			asked := ptr.Deref(m.RecursiveReadOnly, v1.RecursiveReadOnlyDisabled)
			if asked == v1.RecursiveReadOnlyIfPossible {
				asked = v1.RecursiveReadOnlyDisabled
				if observed != nil && slices.Contains(observed.RecursiveReadOnly, path.Join("/", m.MountPath)) {
					asked = v1.RecursiveReadOnlyEnabled
				}
			}
			s.RecursiveReadOnly = &asked
		}
		if observed != nil {
			if image := observed.ImageVolumes[path.Join("/", m.MountPath)]; image != "" {
				s.VolumeStatus = &v1.VolumeStatus{Image: &v1.ImageVolumeStatus{ImageRef: image}}
			}
		}
		out = append(out, s)
	}
	return out
}
