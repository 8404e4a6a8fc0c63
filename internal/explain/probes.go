package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
)

func startupPending(f *facts, cs *v1.ContainerStatus) bool {
	return f.container(cs.Name).StartupProbe != nil && !ptr.Deref(cs.Started, false)
}

func gateState(f *facts) string {
	c := f.condition(openGate(f))
	if c.Type == "" {
		return "is absent: no controller has set it yet"
	}
	return fmt.Sprintf("is %s%s%s", c.Status, f.since(c.LastTransitionTime.Time), parenthesis(joinNonEmpty(": ", c.Reason, OneLine(c.Message))))
}

func (f *facts) probe(container, kind string) Probe {
	i := slices.IndexFunc(f.Probes, func(p Probe) bool { return p.Pod == f.pod.UID && p.Container == container && p.Kind == kind })
	if i < 0 {
		return Probe{}
	}
	return f.Probes[i]
}

// probeText ends a sentence with the message of the last Unhealthy event of a probe. It adds the
// consecutive successes or failures, and their threshold.
func probeText(f *facts, container, kind string) string {
	message := func(e *journal.Entry) string { return OneLine(cmp.Or(e.Error, e.Why)) }
	text := f.note(match(func(e *journal.Entry) bool {
		return from("event", "Unhealthy")(e) && strings.HasPrefix(strings.ToLower(message(e)), kind)
	}).of(container), func(e *journal.Entry) string { return fmt.Sprintf(" (%s%s)", message(e), f.ago(e.Time)) }) + "."
	p := f.probe(container, kind)
	if p.InARow == 0 {
		return text
	}
	threshold := "failureThreshold"
	if p.Last == pod.ProbeSuccess.String() {
		threshold = "successThreshold"
	}
	return text + fmt.Sprintf(" It gave %s %s in a row, with %s %d.", p.Last, times(p.InARow), threshold, p.Needed)
}

// nextProbe reports when a probe of the container runs next, and what follows from its threshold.
func nextProbe(f *facts, container, kind string) string {
	c := f.container(container)
	probe := map[string]*v1.Probe{"liveness": c.LivenessProbe, "readiness": c.ReadinessProbe, "startup": c.StartupProbe}[kind]
	if probe == nil {
		return ""
	}
	text := fmt.Sprintf("the %s probe of container %q is tried again, as every %d s%s", kind, c.Name, periodOf(probe)/time.Second, atThreshold(f, kind, c, probe))
	if next := f.probe(c.Name, kind).Next; !next.IsZero() {
		return f.due(next) + ": " + text
	}
	return text
}

func periodOf(probe *v1.Probe) time.Duration {
	return time.Duration(cmp.Or(probe.PeriodSeconds, 10)) * time.Second
}

func atThreshold(f *facts, kind string, c *v1.Container, probe *v1.Probe) string {
	if kind == "readiness" && !slices.ContainsFunc(f.statuses(), func(cs v1.ContainerStatus) bool { return cs.Name == c.Name && cs.Ready }) {
		return fmt.Sprintf("; after %s in a row (successThreshold) the container is ready", count(int(max(probe.SuccessThreshold, 1)), "success", "successes"))
	}
	state, needed, failed := f.probe(c.Name, kind), int(cmp.Or(probe.FailureThreshold, 3)), 0
	if state.Last == pod.ProbeFailure.String() {
		failed = state.InARow
	}
	when := ""
	if !state.Next.IsZero() && needed > failed {
		when = fmt.Sprintf(", at %s at the earliest", f.at(state.Next.Add(time.Duration(needed-failed-1)*periodOf(probe))))
	}
	then := "the container is not ready, and Services leave the pod out"
	if kind != "readiness" {
		grace := cmp.Or(ptr.Deref(probe.TerminationGracePeriodSeconds, 0), ptr.Deref(f.pod.Spec.TerminationGracePeriodSeconds, 30))
		policy := lifecycle.RestartPolicy(f.pod, c)
		after := fmt.Sprintf("restarted (restartPolicy: %s)", policy)
		if policy == v1.RestartPolicyNever {
			after = "stays down (restartPolicy: Never)"
		}
		then = fmt.Sprintf("the container is killed, with a grace period of %d s, and %s", grace, after)
	}
	return fmt.Sprintf("; with failure %d in a row (failureThreshold)%s, %s", needed, when, then)
}

// failingProbes returns the failing probes of a ready pod that are below their threshold.
func failingProbes(f *facts) (failing []Probe) {
	for _, p := range f.Probes {
		if p.Pod == f.pod.UID && p.Last == pod.ProbeFailure.String() && p.InARow < p.Needed {
			failing = append(failing, p)
		}
	}
	return failing
}

func failingText(f *facts) string {
	var b strings.Builder
	for _, p := range failingProbes(f) {
		fmt.Fprintf(&b, " The %s probe of container %q fails%s", p.Kind, p.Container, probeText(f, p.Container, p.Kind))
	}
	return b.String()
}

// nextFailing reports when those probes run next, and what follows if they keep failing.
func nextFailing(f *facts) (lines []string) {
	for _, p := range failingProbes(f) {
		if line := nextProbe(f, p.Container, p.Kind); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}
