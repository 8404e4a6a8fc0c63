package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
)

// endOf describes a container's exit, with the exceeded limit and whether the agent sent the
// signal.
func (s ending) endOf(container string, end journal.End) string {
	text := endText(end.ExitCode, end.Reason, end.Message)
	if end.Reason == lifecycle.OOMKilled && s.pod != nil {
		return strings.Replace(text, " (OOMKilled", s.memoryLimit(container, end)+" (OOMKilled", 1)
	}
	if signalOf(end.ExitCode) != "" && end.Container != "" && s.killedFor(end) == "" && !s.agentStopped(end) {
		text += ", which the agent did not send,"
	}
	return text
}

// memoryLimit returns the memory limit that an OOM-killed container exceeded.
func (s ending) memoryLimit(container string, end journal.End) string {
	if kill := s.oomOf(end); kill != "" {
		return ": " + kill
	}
	if c := pod.FindContainer(&s.pod.Spec, container); c != nil {
		if limit, ok := c.Resources.Limits[v1.ResourceMemory]; ok {
			return fmt.Sprintf(", which went over its limit of %s", limit.String())
		}
	}
	if r := s.pod.Spec.Resources; r != nil {
		if limit, ok := r.Limits[v1.ResourceMemory]; ok {
			return fmt.Sprintf(", which went over the limit of its pod, %s", limit.String())
		}
	}
	return "; neither it nor its pod has a memory limit"
}

// agentStopped reports whether the agent stopped the container, or may have.
func (s ending) agentStopped(end journal.End) bool {
	if s.pod == nil || s.pod.DeletionTimestamp != nil || len(s.timeline.Entries) == 0 || s.timeline.Entries[0].Time.After(end.Started) {
		return true // the decisions of that time are not recorded any more
	}
	return slices.ContainsFunc(s.timeline.Entries, func(e journal.Entry) bool {
		return !e.Time.Before(end.Started) && (e.Decision == "end the pod" || e.Container == end.Container && e.Decision == "container stopped")
	})
}

// led are decisions that make the agent stop a container.
var led = []string{"liveness probe: failure", "startup probe: failure", "postStart hook failed"}

// ledTo returns why the agent stopped the container: the last probe or hook failure and its count.
func (s ending) ledTo(end journal.End) string {
	for _, e := range slices.Backward(s.timeline.Entries) {
		switch {
		case e.Time.After(end.Finished) || e.Time.Before(end.Started):
		case e.Container == end.Container && slices.Contains(led, e.Decision):
			return fmt.Sprintf(" (%s)", oneLine(joinNonEmpty("; ", e.Error, e.Why)))
		case e.Decision == "changed" && strings.Contains(e.Why, "spec.containers["+end.Container+"]"):
			return fmt.Sprintf(" (%s)", changeOf(e.Why, "spec.containers["+end.Container+"]"))
		}
	}
	return ""
}

// changeOf returns the old and the new value of a changed field from an entry.
func changeOf(why, field string) string {
	if i := strings.Index(why, field); i >= 0 {
		why, _, _ = strings.Cut(why[i:], "; ")
	}
	return oneLine(strings.TrimSuffix(why, "."))
}

// isEnding reports whether the agent terminates the pod without a deletion at the API server.
func (s ending) isEnding() bool {
	for _, e := range slices.Backward(s.timeline.Entries) {
		switch e.Decision {
		case "end the pod":
			return e.Subject.UID == s.pod.UID
		case "accepted":
			return false
		}
	}
	return false
}

// aboutRunning names the containers of a terminating pod that still run.
func (s ending) aboutRunning() string {
	var running []string
	for _, cs := range statusesOf(s.pod) {
		if cs.State.Running != nil {
			running = append(running, fmt.Sprintf("%q%s", cs.Name, hooks(s).hookText(cs.Name)))
		}
	}
	if len(running) == 0 {
		return ""
	}
	return " Still running: " + strings.Join(running, ", ") + "."
}

// aboutDeadline returns the exceeded activeDeadlineSeconds and its start time.
func (s ending) aboutDeadline() string {
	p := s.pod
	if p.Status.Reason != "DeadlineExceeded" || p.Spec.ActiveDeadlineSeconds == nil || p.Status.StartTime == nil {
		return ""
	}
	return fmt.Sprintf(": activeDeadlineSeconds is %d, and the pod was active from %s on", *p.Spec.ActiveDeadlineSeconds, s.at(p.Status.StartTime.Time))
}

// aboutResize reports a resize that is pending or in progress.
func (s explainer) aboutResize() string {
	for _, c := range s.pod.Status.Conditions {
		if (c.Type == v1.PodResizePending || c.Type == v1.PodResizeInProgress) && c.Status == v1.ConditionTrue {
			what := "A resize of it waits"
			if c.Type == v1.PodResizeInProgress {
				what = "A resize of it is under way"
			}
			return fmt.Sprintf(" %s%s: %s.", what, s.sinceTime(c.LastTransitionTime.Time), oneLine(joinNonEmpty(": ", c.Reason, cmp.Or(shortOf(c.Message), c.Message))))
		}
	}
	return ""
}

// shortage matches a rejection for insufficient resources. Its numbers are in the resource's base
// unit: milli-CPUs, bytes or a count.
var shortage = regexp.MustCompile(`didn't have enough resource: ([^,]+), requested: (\d+), used: (\d+), capacity: (\d+)`)

// shortOf describes the shortage in human-readable units.
func shortOf(refusal string) string {
	m := shortage.FindStringSubmatch(refusal)
	n, ok := shortageOf(refusal)
	if !ok {
		return ""
	}
	what, write := " "+m[1], func(v int64) string { return strconv.FormatInt(v, 10) }
	switch v1.ResourceName(m[1]) {
	case v1.ResourceCPU:
		what, write = " CPUs", func(v int64) string {
			return strconv.FormatFloat(float64(v)/1000, 'f', -1, 64)
		}
		if n[0] == 1000 {
			what = " CPU"
		}
	case v1.ResourceMemory, v1.ResourceEphemeralStorage:
		what, write = " of "+m[1], byteSize
	}
	text := strings.ReplaceAll(fmt.Sprintf("it asks for %s%s; %s of %s are free", write(n[0]), what, write(max(0, n[2]-n[1])), write(n[2])), ".0 ", " ")
	_, more, _ := strings.Cut(refusal, m[0])
	return text + strings.TrimSuffix(oneLine(more), ".")
}

// shortageOf returns the requested, used and total amounts in the resource's base unit.
func shortageOf(refusal string) (n [3]int64, ok bool) {
	m := shortage.FindStringSubmatch(refusal)
	for i := range n {
		if m == nil {
			return n, false
		}
		var err error
		if n[i], err = strconv.ParseInt(m[i+2], 10, 64); err != nil {
			return n, false
		}
	}
	return n, true
}

// stamps matches the timestamps in the agent's decisions.
var stamps = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)

// inUnits makes the times and shortages in a text human-readable.
func (s explainer) inUnits(text string) string {
	text = stamps.ReplaceAllStringFunc(text, func(stamp string) string {
		t, err := time.Parse(time.RFC3339, stamp)
		if err != nil {
			return stamp
		}
		return s.at(t)
	})
	return shortage.ReplaceAllStringFunc(strings.ReplaceAll(text, "Node didn't have enough", "didn't have enough"), shortOf)
}

// where matches the prefix of a pass's error: the pod and the step.
var where = regexp.MustCompile(`^sync (terminating |terminated )?pod [^:]+: (step [^:]+: )?(volumes: )?`)

// plainError returns an error of a pass without the prefix that names the pod.
func plainError(text string) string {
	return strings.TrimPrefix(oneLine(where.ReplaceAllString(text, "")), "pod sandbox: ")
}

// missing are objects and drivers that a pod waits for, as named in errors. The agent watches each.
var missing = []struct {
	named *regexp.Regexp
	text  string
}{
	{regexp.MustCompile(`configmap "([^"]+)" not found`), "as soon as the ConfigMap %q exists"},
	{regexp.MustCompile(`secret "([^"]+)" not found`), "as soon as the Secret %q exists"},
	{regexp.MustCompile(`couldn't find key \S+ in ConfigMap \S+/([^\s:]+)`), "as soon as the ConfigMap %q has the key"},
	{regexp.MustCompile(`configmap references non-existent config key: ([^\s:]+)`), "as soon as the ConfigMap has the key %q"},
	{regexp.MustCompile(`couldn't find key \S+ in Secret \S+/(\S+)`), "as soon as the Secret %q has the key"},
	{regexp.MustCompile(`persistentvolumeclaim "([^"]+)" not found`), "as soon as the PersistentVolumeClaim %q exists"},
	{regexp.MustCompile(`PVC \S+/([^\s:]+): PVC is not bound`), "as soon as the PersistentVolumeClaim %q is bound to a volume"},
	{regexp.MustCompile(`RuntimeClass "([^"]+)" not found`), "as soon as the RuntimeClass %q exists"},
	{regexp.MustCompile(`driver name (\S+) not found in the list of registered CSI drivers`), "as soon as the CSI driver %q registers"},
}

// awaited reports what wakes the pod's worker before any timer does.
func (s coming) awaited() (lines []string) {
	if s.pod == nil {
		return nil
	}
	headline := s.headline()
	if strings.Contains(headline, " registry was asked ") {
		return nil // only the next try notices it
	}
	for _, m := range missing {
		if named := m.named.FindStringSubmatch(headline); named != nil {
			lines = append(lines, fmt.Sprintf(m.text, named[1])+sources(s).claimAwaited(named[1]))
		}
	}
	return lines
}
