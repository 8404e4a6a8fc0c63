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

// ending explains pod terminations and container exits.
type ending struct{ explainer }

// aboutVolumes reports that a pod whose containers have exited waits for a CSI driver.
func (s ending) aboutVolumes() string {
	if s.aboutRunning() != "" || !s.waitsForVolume() {
		return ""
	}
	return " Its containers have ended, and a CSI driver has not taken its volumes down yet."
}

// aboutEnd describes the termination of a pod that was requested more than once.
func (s ending) aboutEnd() string {
	text, grace, first := "", "", time.Time{}
	for _, e := range s.timeline.Entries {
		switch {
		case e.Subject.UID != s.timeline.Subject.UID:
		case e.Decision == "end the pod" && first.IsZero():
			first = e.Time
		case e.Decision == "end the pod":
			text = fmt.Sprintf(" It has been ending since %s; the agent restarted at %s, and the grace period began again.", s.at(first), s.at(e.Time))
		case e.Decision == "deletion asked for":
			_, next, _ := strings.Cut(e.Why, "grace period ")
			if grace != "" && next != grace {
				text = fmt.Sprintf(" Its deletion was requested again at %s, with a grace period of %s.", s.at(e.Time), oneLine(next))
			}
			grace = next
		}
	}
	return text
}

// aboutStopping reports a container that the agent stops while its pod continues, or "".
func (s ending) aboutStopping() string {
	cs, e := s.stopping()
	if e == nil {
		return ""
	}
	end := journal.End{Container: cs.Name, Started: cs.State.Running.StartedAt.Time, Finished: s.now}
	why := cmp.Or(s.sandboxReplaced(e.Time), ": "+oneLine(e.Why)+s.ledTo(end)+s.askedForAll(*e))
	return s.says("runs, and its container %q is being stopped%s%s.%s", cs.Name, s.sinceTime(e.Time), why, hooks(s).hookNote(cs.Name))
}

// stopping returns a container that the agent is stopping and the event of that, or nil.
func (s ending) stopping() (v1.ContainerStatus, *journal.Entry) {
	for _, cs := range statusesOf(s.pod) {
		if cs.State.Running == nil {
			continue
		}
		for _, e := range slices.Backward(s.timeline.Entries) {
			if e.Container != cs.Name {
				continue
			}
			if e.Component == "event" && e.Decision == "Killing" && !e.Time.Before(cs.State.Running.StartedAt.Time) {
				return cs, &e
			}
			if strings.HasPrefix(e.Decision, "container stopped") || strings.HasPrefix(e.Decision, "container started") {
				break
			}
		}
	}
	return v1.ContainerStatus{}, nil
}

// nextRestartAll reports what follows after all containers that restart together have stopped.
func (s ending) nextRestartAll() []string {
	if s.pod == nil || s.pod.DeletionTimestamp != nil {
		return nil
	}
	if _, e := s.stopping(); e == nil || s.askedForAll(*e) == "" {
		return nil
	}
	return []string{"as soon as all containers have stopped: they are removed, init containers too, and started from the first one on"}
}

// sandboxReplaced returns the reason of a sandbox replacement for which a container was stopped.
func (s ending) sandboxReplaced(at time.Time) string {
	for _, e := range slices.Backward(s.timeline.Entries) {
		if e.Component == "runtime" && strings.HasPrefix(e.Decision, "stop the pod, create sandbox") && !e.Time.After(at) && at.Sub(e.Time) < time.Second {
			why, _, _ := strings.Cut(e.Why, " [")
			return ", for another sandbox of the pod: " + oneLine(why)
		}
	}
	return ""
}

// lastWords returns the container's termination message.
func lastWords(t *v1.ContainerStateTerminated) string {
	if t.Message == "" || t.Reason == "StartError" || t.Reason == "ContainerCannotRun" || t.Reason == lifecycle.ContainerStatusUnknown {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(t.Message), "\n")
	return fmt.Sprintf(", saying %q", oneLine(lines[len(lines)-1]))
}

// ruleFor returns the restart rule that applies to a container exit.
func (s ending) ruleFor(container string, end journal.End) string {
	c := pod.FindContainer(&s.pod.Spec, container)
	if c == nil || s.killedFor(end) != "" {
		return ""
	}
	if end.ExitCode == 0 && len(c.RestartPolicyRules) == 0 && lifecycle.RestartPolicy(s.pod, c) == v1.RestartPolicyAlways {
		return ", which is a success, and restartPolicy: Always restarts containers after a success too"
	}
	for i, r := range c.RestartPolicyRules {
		one := v1.Container{RestartPolicyRules: []v1.ContainerRestartRule{r}}
		if action, ok := lifecycle.MatchingRule(&one, int32(end.ExitCode)); ok {
			return fmt.Sprintf(", for which rule %d of its restartPolicyRules (exitCodes %s %s) has the action %s", i+1, r.ExitCodes.Operator, join(r.ExitCodes.Values), action)
		}
	}
	return ""
}

func join(codes []int32) string {
	var all []string
	for _, c := range codes {
		all = append(all, fmt.Sprint(c))
	}
	return strings.Join(all, ", ")
}

// oomOf returns the recorded OOM kill within a container's lifetime.
func (s ending) oomOf(end journal.End) string {
	for _, e := range slices.Backward(s.timeline.Entries) {
		if e.Component == "event" && e.Decision == "OOMKilled" && e.Container == end.Container && !e.Time.Before(end.Started) && !e.Time.After(end.Finished.Add(time.Second)) {
			return oneLine(cmp.Or(e.Error, e.Why))
		}
	}
	return ""
}

// whyNotRestarted returns the rule by which a failed container is not restarted.
func (s ending) whyNotRestarted(container string) string {
	c := pod.FindContainer(&s.pod.Spec, container)
	if c == nil {
		return "its pod has failed"
	}
	policy := "its restart policy is " + string(cmp.Or(lifecycle.RestartPolicy(s.pod, c), v1.RestartPolicyAlways))
	if len(c.RestartPolicyRules) > 0 {
		return "none of its restart rules matches, and " + policy
	}
	return policy
}

// failure returns the reason and details of a failed pod.
func (s ending) failure() string {
	st := &s.pod.Status
	if st.Phase != v1.PodFailed || st.Reason == "" {
		return ""
	}
	text := strings.TrimSuffix(oneLine(joinNonEmpty(": ", st.Reason, st.Message)), ".")
	return fmt.Sprintf(" %s%s.", text, cmp.Or(s.aboutDeadline(), s.madeRoomFor(), s.aboutExcess())) + s.aboutChoice()
}

// choice matches the decision to evict a pod because of a node resource; it begins with the
// threshold.
var choice = regexp.MustCompile(`^(\S+<\S+): .*Chosen: (.*)\. Read at (\S+)\.(?: Met since (\S+), for its grace period of (\S+)\.)?$`)

// aboutChoice reports the threshold, when it was met, and why this pod was chosen.
func (s ending) aboutChoice() string {
	for _, e := range slices.Backward(s.timeline.Entries) {
		m := choice.FindStringSubmatch(oneLine(e.Why))
		if m == nil || e.Component != "eviction" || e.Decision != "evict the pod" {
			continue
		}
		read, err := time.Parse(time.RFC3339, m[3])
		if err != nil {
			return ""
		}
		kind := "The hard threshold"
		if since, err := time.Parse(time.RFC3339, m[4]); err == nil {
			kind = fmt.Sprintf("For its grace period of %s, since %s, the soft threshold", m[5], s.at(since))
		}
		return fmt.Sprintf(" %s %s was met, read at %s. This pod was chosen: %s.", kind, m[1], s.at(read), m[2])
	}
	return ""
}

// excess matches the used bytes at the end of an eviction for a local storage limit.
var excess = regexp.MustCompile(`\b(\d+) bytes are used$`)

// aboutExcess reports the local storage usage that exceeded a limit, and when it was measured.
func (s ending) aboutExcess() string {
	for _, e := range slices.Backward(s.timeline.Entries) {
		if m := excess.FindStringSubmatch(e.Why); m != nil && e.Component == "eviction" && e.Decision == "evict the pod" {
			used, err := strconv.ParseInt(m[1], 10, 64)
			if err != nil {
				return ""
			}
			return fmt.Sprintf(": %s were used when it was measured at %s", byteSize(used), s.at(e.Time))
		}
	}
	return ""
}

// madeRoomFor names the pod that preempted this pod.
func (s ending) madeRoomFor() string {
	return s.inUnits(strings.Replace(s.why("end the pod to make room"), ": critical pod", "", 1))
}

// aboutFinalizers names the finalizers of a deleted pod that has terminated on this node.
func (s ending) aboutFinalizers() string {
	if s.pod.DeletionTimestamp == nil || len(s.pod.Finalizers) == 0 {
		return ""
	}
	return fmt.Sprintf(" It is deleted, and the API server keeps it for its finalizers: %s.", strings.Join(s.pod.Finalizers, ", "))
}
