package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

// podRow is a pod as `kubectl get pods -o wide` shows it.
type podRow struct {
	Namespace, Name, Ready, Status, Restarts, Age string
	IP, Node, NominatedNode, ReadinessGates       string
	Labels                                        string
}

// computePodRow computes the row. The words are those that kubectl prints ("Pod Lifecycle" and
// "Debug Pods" of the Kubernetes documentation describe most of them).
func computePodRow(p *v1.Pod, now time.Time) podRow {
	s := summarize(p)
	return podRow{
		Namespace:      p.Namespace,
		Name:           p.Name,
		Ready:          fmt.Sprintf("%d/%d", s.ready, s.total),
		Status:         oneLine(s.status),
		Restarts:       formatRestarts(s.restarts, s.lastRestart, now),
		Age:            formatAge(created(p), now),
		IP:             orNone(podIP(p)),
		Node:           orNone(p.Spec.NodeName),
		NominatedNode:  orNone(p.Status.NominatedNodeName),
		ReadinessGates: readinessGates(p),
		Labels:         orNone(labels.Set(p.Labels).String()),
	}
}

// podSummary is what the row says about a pod's containers.
type podSummary struct {
	status       string
	ready, total int
	restarts     int32
	lastRestart  time.Time
}

func summarize(p *v1.Pod) podSummary {
	s := podSummary{status: cmp.Or(p.Status.Reason, string(p.Status.Phase), "Pending"), total: len(p.Spec.Containers)}
	for i := range p.Spec.InitContainers {
		if lifecycle.IsSidecar(&p.Spec.InitContainers[i]) {
			s.total++
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodScheduled && c.Reason == v1.PodReasonSchedulingGated {
			s.status = v1.PodReasonSchedulingGated
		}
	}
	initializing := s.addInit(p)
	if !initializing || isTrue(p, v1.PodInitialized) {
		s.addContainers(p)
	}
	if p.DeletionTimestamp != nil {
		switch {
		case p.Status.Reason == "NodeLost":
			s.status = "Unknown"
		case !pod.IsTerminal(p.Status.Phase):
			s.status = "Terminating"
		}
	}
	return s
}

// addInit adds the init containers and reports whether the pod is still at them.
func (s *podSummary) addInit(p *v1.Pod) (initializing bool) {
	for i, c := range p.Status.InitContainerStatuses {
		s.addRestarts(c)
		if isSidecar(p, c.Name) && c.Started != nil && *c.Started {
			if c.Ready {
				s.ready++
			}
			continue
		}
		switch t, w := c.State.Terminated, c.State.Waiting; {
		case t != nil && t.ExitCode == 0:
			continue
		case t != nil:
			s.status = "Init:" + terminatedReason(t)
		case w != nil && w.Reason != "" && w.Reason != lifecycle.PodInitializing:
			s.status = "Init:" + w.Reason
		default:
			s.status = fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		}
		return true
	}
	return false
}

// addContainers adds the ordinary containers. The first one in trouble names the status; the
// restarts of init containers that have done their work are of no interest any more, those of
// sidecars are.
func (s *podSummary) addContainers(p *v1.Pod) {
	s.restarts, s.lastRestart = 0, time.Time{}
	for _, c := range p.Status.InitContainerStatuses {
		if isSidecar(p, c.Name) {
			s.addRestarts(c)
		}
	}
	running := false
	for _, c := range slices.Backward(p.Status.ContainerStatuses) {
		s.addRestarts(c)
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.status = c.State.Waiting.Reason
		case c.State.Terminated != nil:
			s.status = terminatedReason(c.State.Terminated)
		case c.State.Running != nil && c.Ready:
			running = true
			s.ready++
		}
	}
	if s.status == lifecycle.Completed && running {
		s.status = "NotReady"
		if isTrue(p, v1.PodReady) {
			s.status = "Running"
		}
	}
}

func (s *podSummary) addRestarts(c v1.ContainerStatus) {
	s.restarts += c.RestartCount
	if t := c.LastTerminationState.Terminated; t != nil && t.FinishedAt.After(s.lastRestart) {
		s.lastRestart = t.FinishedAt.Time
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

func isSidecar(p *v1.Pod, name string) bool {
	return slices.ContainsFunc(p.Spec.InitContainers, func(c v1.Container) bool {
		return c.Name == name && lifecycle.IsSidecar(&c)
	})
}

func isTrue(p *v1.Pod, t v1.PodConditionType) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == t && c.Status == v1.ConditionTrue
	})
}

func formatRestarts(n int32, last, now time.Time) string {
	if n == 0 || last.IsZero() {
		return strconv.Itoa(int(n))
	}
	return fmt.Sprintf("%d (%s ago)", n, duration.HumanDuration(now.Sub(last)))
}

// created is when the pod came to be. A static pod is created when the agent first sees it.
func created(p *v1.Pod) metav1.Time {
	if p.CreationTimestamp.IsZero() && p.Status.StartTime != nil {
		return *p.Status.StartTime
	}
	return p.CreationTimestamp
}

func formatAge(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

func podIP(p *v1.Pod) string {
	if len(p.Status.PodIPs) > 0 {
		return p.Status.PodIPs[0].IP
	}
	return p.Status.PodIP
}

// readinessGates is "how many are true / how many there are".
func readinessGates(p *v1.Pod) string {
	n := 0
	for _, g := range p.Spec.ReadinessGates {
		if isTrue(p, g.ConditionType) {
			n++
		}
	}
	if len(p.Spec.ReadinessGates) == 0 {
		return "<none>"
	}
	return fmt.Sprintf("%d/%d", n, len(p.Spec.ReadinessGates))
}

func orNone(s string) string { return cmp.Or(s, "<none>") }
