package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

// maxTerminationMessages bounds the total termination messages of a pod's containers, in bytes
// (Kubernetes documentation, "Determine the Reason for Pod Failure").
const maxTerminationMessages = 12 * 1024

// settle completes s as the successor of old: final fields, and transition times of conditions. It
// modifies s.
func settle(p *v1.Pod, old, s v1.PodStatus, now metav1.Time) v1.PodStatus {
	s.ObservedGeneration = max(old.ObservedGeneration, p.Generation)
	if pod.IsTerminal(old.Phase) && s.Phase != old.Phase {
		s.Phase, s.Reason, s.Message = old.Phase, old.Reason, old.Message
	}
	if pod.IsTerminal(s.Phase) {
		forceUnready(p, &s)
	}
	switch {
	case old.StartTime != nil:
		s.StartTime = old.StartTime.DeepCopy()
	case s.StartTime == nil:
		s.StartTime = &now
	}
	for i := range s.Conditions {
		setTransitionTime(&s.Conditions[i], old.Conditions, now)
	}
	keepMessages(&old, &s)
	normalize(p, &s)
	return s
}

// keepMessages preserves the messages of old that s repeats with other IDs, times and the like: a
// repeated start failure is reported once. This does not apply to another spec, where a difference
// may be part of a name, such as an image tag.
func keepMessages(old, s *v1.PodStatus) {
	if old.ObservedGeneration != s.ObservedGeneration {
		return
	}
	keep := func(before string, now *string) {
		if pod.IsSameMessage(before, *now) {
			*now = before
		}
	}
	for _, list := range [][2][]v1.ContainerStatus{
		{old.InitContainerStatuses, s.InitContainerStatuses},
		{old.ContainerStatuses, s.ContainerStatuses},
		{old.EphemeralContainerStatuses, s.EphemeralContainerStatuses},
	} {
		for i := range list[1] {
			now := &list[1][i]
			before := lifecycle.FindStatus(list[0], now.Name)
			if before == nil || before.State.Waiting == nil || now.State.Waiting == nil {
				continue
			}
			// The image is compared for API servers that do not count generations (before 1.33).
			if before.State.Waiting.Reason == now.State.Waiting.Reason && before.Image == now.Image {
				keep(before.State.Waiting.Message, &now.State.Waiting.Message)
			}
		}
	}
	for i := range s.Conditions {
		now := &s.Conditions[i]
		if before := findCondition(old.Conditions, now.Type); before != nil && before.Status == now.Status && before.Reason == now.Reason {
			keep(before.Message, &now.Message)
		}
	}
}

// forceUnready sets the readiness conditions of a terminal pod to False, which other writers of the
// phase may not have done.
func forceUnready(p *v1.Pod, s *v1.PodStatus) {
	for i := range s.Conditions {
		c := &s.Conditions[i]
		if (c.Type == v1.PodReady || c.Type == v1.ContainersReady) && c.Status != v1.ConditionFalse {
			t := c.Type
			*c = containersReady(p, s)
			c.Type = t
		}
	}
}

// setTransitionTime preserves the time of an unchanged condition, and of conditions of other
// owners.
func setTransitionTime(c *v1.PodCondition, old []v1.PodCondition, now metav1.Time) {
	ours := slices.Contains(ownedConditions, c.Type) || slices.Contains(keptConditions, c.Type)
	if !ours && !c.LastTransitionTime.IsZero() {
		return
	}
	if before := findCondition(old, c.Type); before != nil && before.Status == c.Status && !before.LastTransitionTime.IsZero() {
		c.LastTransitionTime = before.LastTransitionTime
		return
	}
	c.LastTransitionTime = now
}

// checkTransitions rejects a status in which a terminated container that must not be restarted is
// no longer terminated: it results from a mistake, and users act on container exits.
func checkTransitions(p *v1.Pod, old, s *v1.PodStatus) error {
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		code, revived := revivedFrom(c.Name, old.InitContainerStatuses, s.InitContainerStatuses)
		// Init containers that succeeded run again in a new sandbox.
		if revived && code != 0 && !lifecycle.IsRestartable(p, c, code) && lifecycle.RestartPolicy(p, c) == v1.RestartPolicyNever {
			return fmt.Errorf("init container %q ended with exit code %d and must not be restarted, but is no longer terminated", c.Name, code)
		}
	}
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		code, revived := revivedFrom(c.Name, old.ContainerStatuses, s.ContainerStatuses)
		if revived && !lifecycle.IsRestartable(p, c, code) {
			return fmt.Errorf("container %q ended with exit code %d and must not be restarted, but is no longer terminated", c.Name, code)
		}
	}
	return nil
}

// revivedFrom returns the exit code of a container that was terminated and is not any more.
func revivedFrom(name string, old, list []v1.ContainerStatus) (exitCode int32, revived bool) {
	before, after := lifecycle.FindStatus(old, name), lifecycle.FindStatus(list, name)
	if before == nil || after == nil || before.State.Terminated == nil || after.State.Terminated != nil {
		return 0, false
	}
	if w := after.State.Waiting; w != nil && w.Reason == lifecycle.RestartingAllContainers {
		return 0, false // a rule restarts it with all others, regardless of its policy
	}
	return before.State.Terminated.ExitCode, true
}

// terminatedStatus returns the final status of a pod whose containers have all exited. old is not
// modified.
func terminatedStatus(p *v1.Pod, old v1.PodStatus) v1.PodStatus {
	s := *old.DeepCopy()
	if c := findCondition(s.Conditions, v1.PodInitialized); c != nil && c.Status == v1.ConditionTrue {
		endAll(s.ContainerStatuses, func(*v1.ContainerStatus) bool { return true })
	}
	endAll(s.InitContainerStatuses, func(cs *v1.ContainerStatus) bool {
		return cs.ContainerID != "" || cs.State.Running != nil || cs.LastTerminationState.Terminated != nil
	})
	endAll(s.EphemeralContainerStatuses, func(cs *v1.ContainerStatus) bool { return cs.State.Running != nil })
	if !pod.IsTerminal(s.Phase) && !pod.IsStatic(p) {
		s.Phase = v1.PodFailed
	}
	containers := containersReady(p, &s)
	for i := range s.Conditions {
		switch c := &s.Conditions[i]; c.Type {
		case v1.ContainersReady:
			*c = containers
		case v1.PodReady:
			*c = podReady(p, foreignConditions(p), containers)
		}
	}
	return s
}

// endAll sets the terminated state of containers that have started and are not terminated.
func endAll(list []v1.ContainerStatus, begun func(*v1.ContainerStatus) bool) {
	for i := range list {
		cs := &list[i]
		if cs.State.Terminated != nil || !begun(cs) {
			continue
		}
		cs.State = v1.ContainerState{Terminated: lostState(cs, lostAtTermination)}
		cs.Ready = false
		if cs.Started != nil {
			cs.Started = new(bool)
		}
	}
}

// normalize converts the status to the form that the API returns: times in whole seconds, bounded
// messages.
func normalize(p *v1.Pod, s *v1.PodStatus) {
	truncate(s.StartTime)
	for i := range s.Conditions {
		truncate(&s.Conditions[i].LastProbeTime)
		truncate(&s.Conditions[i].LastTransitionTime)
	}
	limit := maxTerminationMessages / max(1, len(p.Spec.InitContainers)+len(p.Spec.Containers)+len(p.Spec.EphemeralContainers))
	for _, list := range [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			normalizeState(&list[i].State, limit)
			normalizeState(&list[i].LastTerminationState, limit)
		}
	}
}

func normalizeState(s *v1.ContainerState, limit int) {
	if s.Running != nil {
		truncate(&s.Running.StartedAt)
	}
	if t := s.Terminated; t != nil {
		truncate(&t.StartedAt)
		truncate(&t.FinishedAt)
		if len(t.Message) > limit {
			t.Message = strings.ToValidUTF8(t.Message[:limit], "") // a character may have been split
		}
	}
}

// truncate rounds down to a second, the precision of metav1.Time in JSON.
func truncate(t *metav1.Time) {
	t.Time = t.Truncate(time.Second)
}
