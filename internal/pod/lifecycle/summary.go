package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"berth/internal/pod"
)

// Summary is the row of a pod in `kubectl get pods`, in kubectl's wording ("Pod Lifecycle" and
// "Debug Pods" of the Kubernetes documentation describe most of it).
type Summary struct {
	Status       string
	Ready, Total int
	Restarts     int32
	LastRestart  time.Time
}

// Summarize computes the summary of a pod.
func Summarize(p *v1.Pod) Summary {
	s := Summary{Status: cmp.Or(p.Status.Reason, string(p.Status.Phase)), Total: len(p.Spec.Containers)}
	for i := range p.Spec.InitContainers {
		if IsSidecar(&p.Spec.InitContainers[i]) {
			s.Total++
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodScheduled && c.Reason == v1.PodReasonSchedulingGated {
			s.Status = v1.PodReasonSchedulingGated
		}
	}
	initializing := s.addInit(p)
	if !initializing || IsTrue(p, v1.PodInitialized) {
		s.addContainers(p)
	}
	if p.DeletionTimestamp != nil {
		switch {
		case p.Status.Reason == "NodeLost":
			s.Status = "Unknown"
		case !pod.IsTerminal(p.Status.Phase):
			s.Status = "Terminating"
		}
	}
	return s
}

// addInit adds the init containers and reports whether the pod is still initializing.
func (s *Summary) addInit(p *v1.Pod) (initializing bool) {
	for i, c := range p.Status.InitContainerStatuses {
		s.addRestarts(c)
		if HasSidecar(p, c.Name) && c.Started != nil && *c.Started {
			if c.Ready {
				s.Ready++
			}
			continue
		}
		switch t, w := c.State.Terminated, c.State.Waiting; {
		case t != nil && t.ExitCode == 0:
			continue
		case t != nil:
			s.Status = "Init:" + terminatedReason(t)
		case w != nil && w.Reason != "" && w.Reason != PodInitializing:
			s.Status = "Init:" + w.Reason
		default:
			s.Status = fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		}
		return true
	}
	return false
}

// addContainers adds the regular containers. The first one with a problem sets the status. Restarts
// of completed init containers no longer count, those of sidecars do.
func (s *Summary) addContainers(p *v1.Pod) {
	s.Restarts, s.LastRestart = 0, time.Time{}
	for _, c := range p.Status.InitContainerStatuses {
		if HasSidecar(p, c.Name) {
			s.addRestarts(c)
		}
	}
	running := false
	for _, c := range slices.Backward(p.Status.ContainerStatuses) {
		s.addRestarts(c)
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.Status = c.State.Waiting.Reason
		case c.State.Terminated != nil:
			s.Status = terminatedReason(c.State.Terminated)
		case c.State.Running != nil && c.Ready:
			running = true
			s.Ready++
		}
	}
	if s.Status == Completed && running {
		s.Status = "NotReady"
		if IsTrue(p, v1.PodReady) {
			s.Status = "Running"
		}
	}
}

func (s *Summary) addRestarts(c v1.ContainerStatus) {
	s.Restarts += c.RestartCount
	if t := c.LastTerminationState.Terminated; t != nil && t.FinishedAt.After(s.LastRestart) {
		s.LastRestart = t.FinishedAt.Time
	}
}

func terminatedReason(t *v1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	default:
		return fmt.Sprintf("ExitCode:%d", t.ExitCode)
	}
}

// HasSidecar reports whether an init container of that name is a sidecar.
func HasSidecar(p *v1.Pod, name string) bool {
	return slices.ContainsFunc(p.Spec.InitContainers, func(c v1.Container) bool {
		return c.Name == name && IsSidecar(&c)
	})
}

// IsTrue reports whether a condition of a pod is true.
func IsTrue(p *v1.Pod, t v1.PodConditionType) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == t && c.Status == v1.ConditionTrue
	})
}

// RestartsAt returns the number of restarts, and the time since the last one.
func (s Summary) RestartsAt(now time.Time) string {
	if s.Restarts == 0 || s.LastRestart.IsZero() {
		return strconv.Itoa(int(s.Restarts))
	}
	return fmt.Sprintf("%d (%s ago)", s.Restarts, duration.HumanDuration(now.Sub(s.LastRestart)))
}

// FirstIP returns the address of a pod in a row, or "".
func FirstIP(p *v1.Pod) string {
	if len(p.Status.PodIPs) > 0 {
		return p.Status.PodIPs[0].IP
	}
	return p.Status.PodIP
}

// ReadinessGates returns "true gates/all gates", or "<none>".
func ReadinessGates(p *v1.Pod) string {
	n := 0
	for _, g := range p.Spec.ReadinessGates {
		if IsTrue(p, g.ConditionType) {
			n++
		}
	}
	if len(p.Spec.ReadinessGates) == 0 {
		return "<none>"
	}
	return fmt.Sprintf("%d/%d", n, len(p.Spec.ReadinessGates))
}
