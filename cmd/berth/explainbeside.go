package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
)

// newsFor is how long after a restart of the agent or the runtime a healthy pod's explanation
// mentions it.
const newsFor = 10 * time.Minute

// aboutNode reports recent restarts of the agent and the runtime, and a hook that such a restart
// interrupted.
func (s explainer) aboutNode() string {
	agent, runtime, hook := "", "", ""
	for _, e := range s.timeline.Entries {
		switch ago := s.now.Sub(e.Time); {
		case ago > newsFor:
		case e.Decision == "go on with the pod as it runs":
			agent = fmt.Sprintf(" The agent was started again%s; nothing of the pod was.", s.agoOf(e.Time))
		case e.Decision == "the container runtime answers again":
			runtime = fmt.Sprintf(" The container runtime answers again since %s, after %s without; nothing of the pod was restarted for it.",
				strings.TrimSpace(strings.TrimSuffix(s.agoOf(e.Time), " ago")), roundDuration(e.Took))
		case strings.HasSuffix(e.Decision, "hook broken off"):
			hook = fmt.Sprintf(" The %s of container %q was broken off at %s, as the agent ended; it is not run again.", strings.TrimSuffix(e.Decision, " broken off"), e.Container, s.at(e.Time))
		}
	}
	return agent + hook + runtime
}

// aboutBeside reports problems of a pod that is ready.
func (s explainer) aboutBeside() string {
	var b strings.Builder
	for _, cs := range s.pod.Status.EphemeralContainerStatuses {
		if w := cs.State.Waiting; w != nil && w.Message != "" {
			fmt.Fprintf(&b, " Ephemeral container %q is not started (%s): %s", cs.Name, w.Reason, sentence(oneLine(w.Message)))
		}
		if t := cs.State.Terminated; t != nil {
			fmt.Fprintf(&b, " Ephemeral container %q %s%s%s; it is not started again.", cs.Name, ending{s}.endOf(cs.Name, ofStatus(t)), s.agoOf(t.FinishedAt.Time), lastWords(t))
		}
	}
	for _, cs := range statusesOf(s.pod) {
		b.WriteString(s.aboutChild(cs))
		for _, r := range cs.AllocatedResourcesStatus {
			for _, d := range r.Resources {
				if d.Health == v1.ResourceHealthStatusUnhealthy {
					fmt.Fprintf(&b, " Device %s of %s, which container %q has, is unhealthy; the container goes on with it.", d.ResourceID, r.Name, cs.Name)
				}
			}
		}
	}
	for _, p := range s.e.Problems {
		if p.Severity == "error" {
			fmt.Fprintf(&b, " Its manifest was changed and is refused, and the pod goes on as it was: %s", oneLine(p.Message))
		}
	}
	return b.String()
}

// aboutChild reports an OOM kill in a container that still runs.
func (s explainer) aboutChild(cs v1.ContainerStatus) string {
	if cs.State.Running == nil {
		return ""
	}
	kill := ending{s}.oomOf(journal.End{Container: cs.Name, Started: cs.State.Running.StartedAt.Time, Finished: s.now})
	if end, ok := s.lastEnd(cs); kill == "" || ok && kill == (ending{s}).oomOf(end) { // the kill belongs to the previous exit
		return ""
	}
	return fmt.Sprintf(" In container %q, which goes on, %s.", cs.Name, kill)
}

// aboutImage reports why a container has no image: the failure, or the progress of the next pull.
func (s explainer) aboutImage(container string, w *v1.ContainerStateWaiting) string {
	image := imageOf(s.pod, container)
	changed := ""
	for _, e := range slices.Backward(s.timeline.Entries) {
		if e.Decision == "changed" && strings.Contains(e.Why, "spec.containers["+container+"].image") {
			changed = fmt.Sprintf(" It was changed%s: %s.", s.agoOf(e.Time), changeOf(e.Why, "spec.containers["+container+"].image"))
			break
		}
	}
	failure := oneLine(w.Message)
	if _, text, ok := strings.Cut(failure, "ErrImagePull: "); ok {
		failure = text
	}
	failure = strings.TrimSuffix(imageFailure(failure), ".")
	if w.Reason == lifecycle.ErrImageNeverPull && strings.Contains(failure, "is not present") {
		changed += ` Bring it with "berth image import" or "berth image pull", or set imagePullPolicy: IfNotPresent.`
	}
	if pulls := s.aboutPulls(); pulls != "" {
		return s.says("is waiting for the image of container %q.%s The try before failed: %s.%s", container, pulls, failure, changed)
	}
	return s.says("is waiting: the image of container %q, %s, is not available (%s): %s.%s%s", container, image, w.Reason, failure, s.credentialsTried(container), changed)
}

// Prefixes with the image name that container runtimes add to the cause of a failed pull.
var (
	pullWrapping = regexp.MustCompile(`(?i)failed to (?:(?:pull(?: and unpack)?|resolve) (?:image|reference) "[^"]*"|resolve image): `)
	notFoundName = regexp.MustCompile(`(^|\()\S+: not found`)
)

// imageFailure returns the cause of a failed pull without the image name, which is reported
// separately.
func imageFailure(message string) string {
	return notFoundName.ReplaceAllString(pullWrapping.ReplaceAllString(message, ""), "${1}not found")
}

// credentialsTried reports which credentials the last pull of the container's image used.
func (s explainer) credentialsTried(container string) string {
	for _, e := range slices.Backward(s.timeline.Entries) {
		if _, tried, ok := strings.Cut(e.Why, "; asked "); ok && e.Component == "image" && e.Container == container {
			return fmt.Sprintf(" The registry was asked %s.%s", oneLine(tried), s.secretsMissing(container))
		}
	}
	return ""
}

func (s explainer) secretsMissing(container string) string {
	for _, e := range slices.Backward(s.timeline.Entries) {
		if e.Decision == "go on without some image pull secrets" && e.Container == container {
			return fmt.Sprintf(" Left out: %s.", strings.TrimSuffix(oneLine(e.Error), "."))
		}
	}
	return ""
}

// waitedFor adds details of what a pod that has not started yet waits for.
func (s explainer) waitedFor(wait *journal.Entry) string {
	switch wait.Decision {
	case waitForRoom:
		return s.inUnits(s.why("end other pods to make room"))
	case waitForName:
		for _, e := range s.timeline.Entries {
			if i := strings.Index(e.Why, " changed ("); i >= 0 && e.Decision == "accepted" {
				what, _, _ := strings.Cut(e.Why[i+len(" changed ("):], "): ")
				return ", as the manifest was changed: " + oneLine(what)
			}
		}
		return ""
	}
	if wait.Why != "" {
		return " (" + oneLine(wait.Why) + ")"
	}
	return ""
}

// Decisions of a pod that waits before its admission.
const (
	waitForRoom = "wait for room to be made"
	waitForName = "wait for the pod of the same name to end"
)

// victim matches a preempted pod and its deadline.
var victim = regexp.MustCompile(`(\S+) \([A-Za-z]+, priority -?\d+\), which has \d+ s to end, until ([0-9T:-]+Z)`)

// victimsEnd reports when the preempted pods are killed.
func (s coming) victimsEnd() (lines []string) {
	for _, m := range victim.FindAllStringSubmatch(s.why("end other pods to make room"), -1) {
		if until, err := time.Parse(time.RFC3339, m[2]); err == nil && until.After(s.now) {
			lines = append(lines, fmt.Sprintf("%s: pod %s is killed, if it has not ended before", s.dueText(until), m[1]))
		}
	}
	return lines
}

// nextAwaited reports what completes the wait that the worker or a volume recorded last.
func (s coming) nextAwaited() (lines []string) {
	if len(s.timeline.Entries) == 0 {
		return nil
	}
	last := s.timeline.Entries[len(s.timeline.Entries)-1]
	switch {
	case last.Decision == waitForRoom:
		return append(s.victimsEnd(), "as soon as the room is there: the pod is admitted then")
	case last.Decision == waitForName:
		lines = append(lines, "as soon as the pod of the same name has ended")
		for _, other := range s.e.Stories {
			for _, n := range other.Next {
				if other.Subject.UID != s.timeline.Subject.UID {
					lines = append(lines, fmt.Sprintf("%s: %s", s.dueText(n.Time), joinNonEmpty(": ", strings.Replace(n.What, "of the pod", "of that pod", 1), n.Rule)))
				}
			}
		}
	case s.waitsForVolume(): // the call has a timeout
	case strings.HasPrefix(last.Decision, "wait for volume"):
		return []string{"as soon as " + strings.TrimPrefix(strings.Replace(last.Decision, " to be mounted", " is mounted", 1), "wait for ") + "; no limit is known for it"}
	}
	return lines
}

// callNames describes CRI calls whose names do not explain themselves.
var callNames = map[string]string{
	"RunPodSandbox":  "RunPodSandbox, in which the network plugin makes the pod's network",
	"StopPodSandbox": "StopPodSandbox, in which the network plugin takes the pod's network down",
	"Wait":           "Wait, for the end of a container that was sent SIGTERM",
}

func callName(call string) string { return cmp.Or(callNames[call], call) }
