package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/api/server"
	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

// unready explains why a pod with running containers is not ready, and the state of its probes.
type unready struct{ explainer }

func (s unready) aboutUnready() string {
	p := s.pod
	for _, cs := range p.Status.ContainerStatuses {
		if cs.Ready {
			continue
		}
		c := pod.FindContainer(&p.Spec, cs.Name)
		switch {
		case c != nil && c.StartupProbe != nil && (cs.Started == nil || !*cs.Started):
			return s.says("runs and is not ready: container %q has not passed its startup probe yet%s.%s", cs.Name, s.lastProbe(cs.Name, "startup"), s.tally(cs.Name, "startup"))
		case c != nil && c.ReadinessProbe != nil:
			return s.says("runs and is not ready: the readiness probe of container %q does not succeed%s.%s", cs.Name, s.lastProbe(cs.Name, "readiness"), s.tally(cs.Name, "readiness"))
		}
		return s.says("runs and is not ready: container %q is not ready.", cs.Name)
	}
	for _, g := range p.Spec.ReadinessGates {
		if !lifecycle.IsTrue(p, g.ConditionType) {
			return s.says("runs and is not ready: the condition %q of its readiness gates %s; controllers set it, and not this node.", g.ConditionType, s.gate(g.ConditionType))
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady && c.Status != v1.ConditionTrue && c.Reason != "" {
			return s.says("is not ready: %s", oneLine(joinNonEmpty(": ", c.Reason, c.Message)))
		}
	}
	return s.aboutStarting()
}

// gate describes a condition that is not true.
func (s unready) gate(t v1.PodConditionType) string {
	for _, c := range s.pod.Status.Conditions {
		if c.Type == t {
			return fmt.Sprintf("is %s%s%s", c.Status, s.sinceTime(c.LastTransitionTime.Time), parenthesis(joinNonEmpty(": ", c.Reason, oneLine(c.Message))))
		}
	}
	return "is absent: no controller has set it yet"
}

func parenthesis(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

// lastProbe returns the message of the container's last Unhealthy event of the probe kind.
func (s unready) lastProbe(container, kind string) string {
	for _, e := range slices.Backward(s.timeline.Entries) {
		text := oneLine(cmp.Or(e.Error, e.Why))
		if e.Component == "event" && e.Container == container && e.Decision == "Unhealthy" && strings.HasPrefix(strings.ToLower(text), kind) {
			return fmt.Sprintf(" (%s%s)", text, s.agoOf(e.Time))
		}
	}
	return ""
}

// stateOf returns the state of a probe of the container.
func (s unready) stateOf(container, kind string) server.Probe {
	for _, p := range s.e.Probes {
		if p.Pod == s.pod.UID && p.Container == container && p.Kind == kind {
			return p
		}
	}
	return server.Probe{}
}

// tally describes a probe's consecutive successes or failures and its threshold.
func (s unready) tally(container, kind string) string {
	p := s.stateOf(container, kind)
	if p.InARow == 0 {
		return ""
	}
	threshold := "failureThreshold"
	if p.Last == pod.ProbeSuccess.String() {
		threshold = "successThreshold"
	}
	return fmt.Sprintf(" It gave %s %s in a row, with %s %d.", p.Last, times(p.InARow), threshold, p.Needed)
}

// probed reports when a probe runs next, and what follows from its threshold.
func (s unready) probed(kind string, c *v1.Container, probe *v1.Probe) string {
	text := fmt.Sprintf("the %s probe of container %q is tried again, as every %d s%s", kind, c.Name, periodOf(probe)/time.Second, s.atThreshold(kind, c, probe))
	if next := s.stateOf(c.Name, kind).Next; !next.IsZero() {
		return s.dueText(next) + ": " + text
	}
	return text
}

func periodOf(probe *v1.Probe) time.Duration {
	return time.Duration(cmp.Or(probe.PeriodSeconds, 10)) * time.Second
}

// atThreshold describes what follows when a probe reaches its failure or success threshold.
func (s unready) atThreshold(kind string, c *v1.Container, probe *v1.Probe) string {
	cs := containerStatusOf(s.pod, c.Name)
	if kind == "readiness" && (cs == nil || !cs.Ready) {
		return fmt.Sprintf("; after %s in a row (successThreshold) the container is ready", countOf(int(max(probe.SuccessThreshold, 1)), "success", "successes"))
	}
	state, needed := s.stateOf(c.Name, kind), int(cmp.Or(probe.FailureThreshold, 3))
	failed := 0
	if state.Last == pod.ProbeFailure.String() {
		failed = state.InARow
	}
	when := ""
	if !state.Next.IsZero() && needed > failed {
		when = fmt.Sprintf(", at %s at the earliest", s.at(state.Next.Add(time.Duration(needed-failed-1)*periodOf(probe))))
	}
	then := "the container is not ready, and Services leave the pod out"
	if kind != "readiness" {
		grace := cmp.Or(ptr.Deref(probe.TerminationGracePeriodSeconds, 0), ptr.Deref(s.pod.Spec.TerminationGracePeriodSeconds, 30))
		policy := lifecycle.RestartPolicy(s.pod, c)
		then = fmt.Sprintf("the container is killed, with a grace period of %d s, and restarted (restartPolicy: %s)", grace, policy)
		if policy == v1.RestartPolicyNever {
			then = fmt.Sprintf("the container is killed, with a grace period of %d s, and stays down (restartPolicy: Never)", grace)
		}
	}
	return fmt.Sprintf("; with failure %d in a row (failureThreshold)%s, %s", needed, when, then)
}

// failing returns the failing probes of a ready pod that are below their threshold.
func (s unready) failing() (out []server.Probe) {
	for _, p := range s.e.Probes {
		if p.Pod == s.pod.UID && p.Last == pod.ProbeFailure.String() && p.InARow < p.Needed {
			out = append(out, p)
		}
	}
	return out
}

// aboutFailing describes the failing probes of a ready pod.
func (s unready) aboutFailing() string {
	var b strings.Builder
	for _, p := range s.failing() {
		fmt.Fprintf(&b, " The %s probe of container %q fails%s.%s", p.Kind, p.Container, s.lastProbe(p.Container, p.Kind), s.tally(p.Container, p.Kind))
	}
	return b.String()
}

// nextFailing reports when those probes run next, and what follows if they keep failing.
func (s unready) nextFailing() (lines []string) {
	for _, p := range s.failing() {
		c := pod.FindContainer(&s.pod.Spec, p.Container)
		if c == nil {
			continue
		}
		probe := map[string]*v1.Probe{"liveness": c.LivenessProbe, "readiness": c.ReadinessProbe, "startup": c.StartupProbe}[p.Kind]
		if probe != nil {
			lines = append(lines, s.probed(p.Kind, c, probe))
		}
	}
	return lines
}

// containerStatusOf returns the status of the container, or nil.
func containerStatusOf(p *v1.Pod, container string) *v1.ContainerStatus {
	all := statusesOf(p)
	if i := slices.IndexFunc(all, func(cs v1.ContainerStatus) bool { return cs.Name == container }); i >= 0 {
		return &all[i]
	}
	return nil
}

func countOf(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
