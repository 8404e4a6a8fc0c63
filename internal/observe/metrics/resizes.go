package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

var (
	pendingResizes    = desc("kubelet_pod_pending_resizes", "[ALPHA] Number of pending resizes for pods.", "reason")
	inProgressResizes = desc("kubelet_pod_in_progress_resizes", "[ALPHA] Number of in-progress resizes for pods.")
)

// seenResize is the counted state of a pod's resizes.
type seenResize struct {
	wanted     map[string]v1.ResourceRequirements // by container, as last seen
	began      time.Time                          // of the one in progress; zero: none
	failed     bool                               // and was counted
	infeasible string                             // the message of the counted pending one
}

func (p *Pods) collectResizes(ch chan<- prometheus.Metric) {
	pending, inProgress := map[string]int{"deferred": 0, "infeasible": 0}, 0
	for _, x := range p.List() {
		if c := conditionOf(x, v1.PodResizePending); c != nil && c.Status == v1.ConditionTrue {
			pending[strings.ToLower(c.Reason)]++
		}
		if c := conditionOf(x, v1.PodResizeInProgress); c != nil && c.Status == v1.ConditionTrue {
			inProgress++
		}
	}
	for reason, n := range pending {
		if reason == "deferred" || reason == "infeasible" {
			ch <- prometheus.MustNewConstMetric(pendingResizes, gauge, float64(n), reason)
		}
	}
	ch <- prometheus.MustNewConstMetric(inProgressResizes, gauge, float64(inProgress))
}

func conditionOf(x *v1.Pod, kind v1.PodConditionType) *v1.PodCondition {
	for i := range x.Status.Conditions {
		if c := &x.Status.Conditions[i]; c.Type == kind {
			return c
		}
	}
	return nil
}

// countResize counts the changes of the pod's resizes: requested ones, infeasible ones, and
// durations.
func (n *podCounts) countResize(s *seenResize, x *v1.Pod) {
	wanted := map[string]v1.ResourceRequirements{}
	for c := range pod.Containers(&x.Spec) {
		wanted[c.Name] = c.Resources
		if was, ok := s.wanted[c.Name]; ok {
			n.requested("requests", was.Requests, c.Resources.Requests)
			n.requested("limits", was.Limits, c.Resources.Limits)
		}
	}
	s.wanted = wanted

	infeasible := ""
	if c := conditionOf(x, v1.PodResizePending); c != nil && c.Status == v1.ConditionTrue && c.Reason == v1.PodReasonInfeasible {
		infeasible = c.Message
		if infeasible != s.infeasible {
			n.infeasibleResizes.WithLabelValues(infeasibleDetail(infeasible)).Inc()
		}
	}
	s.infeasible = infeasible

	c := conditionOf(x, v1.PodResizeInProgress)
	switch {
	case c != nil && c.Status == v1.ConditionTrue:
		if s.began.IsZero() {
			s.began, s.failed = time.Now(), false
		}
		if failed := c.Reason == v1.PodReasonError; failed != s.failed {
			s.failed = failed
			if failed {
				n.resizeDuration.WithLabelValues("false").Observe(milliseconds(time.Since(s.began)))
			}
		}
	case !s.began.IsZero():
		n.resizeDuration.WithLabelValues("true").Observe(milliseconds(time.Since(s.began)))
		s.began = time.Time{}
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// requested counts the differences between two lists.
func (n *podCounts) requested(requirement string, was, is v1.ResourceList) {
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		old, had := was[name]
		now, has := is[name]
		operation := ""
		switch {
		case !had && has:
			operation = "add"
		case had && !has:
			operation = "remove"
		case now.Cmp(old) > 0:
			operation = "increase"
		case now.Cmp(old) < 0:
			operation = "decrease"
		default:
			continue
		}
		n.requestedResizes.WithLabelValues(string(name), requirement, operation).Inc()
	}
}

// infeasibleDetail maps admission's reasons to the bounded values of the label.
func infeasibleDetail(message string) string {
	for part, word := range map[string]string{
		"static-pods": "static_pod", "QOS Class": "qos_class", "feature gate": "feature_gate_off", "swap": "swap_limitation",
	} {
		if strings.Contains(message, part) {
			return word
		}
	}
	return "other"
}
