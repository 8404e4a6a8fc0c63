package explain

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
)

// notYet describes start steps that are not complete.
var notYet = map[string]string{
	stepClaims:                "its resource claims are not prepared yet",
	journal.Admitted.String(): "it has not been admitted yet",
	journal.Cgroup.String():   "its cgroup is not made yet",
	journal.Volumes.String():  "its volumes are not mounted yet",
	journal.Sandbox.String():  "its sandbox does not run yet",
	journal.Image.String():    "its images are not there yet",
}

// starting reports the current step of the start, and its last failure or what it waits for.
func starting(f *facts) string {
	began, last := f.timeline.Seen, f.timeline.Seen
	for _, m := range f.timeline.Milestones {
		if m.Step == journal.Bound {
			began = m.Time
		}
		if m.Time.After(last) {
			last = m.Time
		}
	}
	step := ""
	if steps := startSteps(f); claimsFailNow(f) {
		step = stepClaims
	} else if n := len(steps); n > 0 && steps[n-1].Open {
		step = steps[n-1].Name
	}
	text := fmt.Sprintf("is starting%s: %s.%s", f.since(began), cmp.Or(notYet[step], "its containers are being started"), pulls(f))
	for i, e := range slices.Backward(f.timeline.Entries) {
		switch {
		case e.Time.Before(stepBegan(f, &e, last)):
		case e.Error != "" && e.Component != "event":
			cause := plainError(e.Error)
			return fmt.Sprintf("%s The last try failed%s: %s%s%s", text, f.ago(e.Time), sentence(cause), missingSource(f, cause), claimRule(f))
		case postStartRuns(&e):
			return text + postStartText(f)
		case strings.HasPrefix(e.Decision, "wait for "):
			return fmt.Sprintf("%s It has to %s%s.%s", text, OneLine(e.Decision), waitDetails(f, &e), failedBefore(f, f.timeline.Entries[:i], last))
		}
	}
	return text
}

// stepBegan returns when the unfinished step of an entry began. last is the time of the last
// finished step. Volumes are set up in parallel with sandbox and images, which may finish between
// their tries.
func stepBegan(f *facts, e *journal.Entry, last time.Time) time.Time {
	setUp := func(m journal.Milestone) bool { return m.Step == journal.Volumes }
	if e.Component == "volume" && !slices.ContainsFunc(f.timeline.Milestones, setUp) {
		return f.timeline.Seen
	}
	return last
}

// failedBefore describes the failure of the previous try of the current step. last is the time of
// the last finished step.
func failedBefore(f *facts, entries []journal.Entry, last time.Time) string {
	for _, e := range slices.Backward(entries) {
		if (e.Component == "worker" || e.Component == "volume") && e.Error != "" && !e.Time.Before(stepBegan(f, &e, last)) {
			return fmt.Sprintf(" The try before failed%s: %s.", f.ago(e.Time), strings.TrimSuffix(plainError(e.Error), "."))
		}
	}
	return ""
}

// Decisions of a pod that waits before its admission.
const (
	waitForRoom = "wait for room to be made"
	waitForName = "wait for the pod of the same name to end"
)

func waitDetails(f *facts, wait *journal.Entry) string {
	switch wait.Decision {
	case waitForRoom:
		return inUnits(f, f.why("end other pods to make room"))
	case waitForName:
		for _, e := range f.timeline.Entries {
			if _, change, ok := strings.Cut(e.Why, " changed ("); ok && e.Decision == "accepted" {
				what, _, _ := strings.Cut(change, "): ")
				return ", as the manifest was changed: " + OneLine(what)
			}
		}
		return ""
	}
	return parenthesis(OneLine(wait.Why))
}

var (
	// passPrefix matches the prefix of a pass's error: the pod and the step.
	passPrefix = regexp.MustCompile(`^sync (terminating |terminated )?pod [^:]+: (step [^:]+: )?(volumes: )?`)
	// pullWrapping and notFoundName match the image name that container runtimes add to the cause
	// of a failed pull.
	pullWrapping = regexp.MustCompile(`(?i)failed to (?:(?:pull(?: and unpack)?|resolve) (?:image|reference) "[^"]*"|resolve image): `)
	notFoundName = regexp.MustCompile(`(^|\()\S+: not found`)
)

// plainError returns an error of a pass without the prefix that names the pod.
func plainError(text string) string {
	return strings.TrimPrefix(OneLine(passPrefix.ReplaceAllString(text, "")), "pod sandbox: ")
}

// passFailed reports whether the error of the pod's last pass, without its prefix, meets a
// condition.
func passFailed(f *facts, is func(failure string) bool) bool {
	e := f.last(from("worker", "*"))
	return e != nil && is(passPrefix.ReplaceAllString(e.Error, ""))
}

// sandboxFails reports whether the last try to start the pod failed at its sandbox. That also
// cancels parallel steps, such as its volumes.
func sandboxFails(f *facts) bool {
	return passFailed(f, func(failure string) bool { // without a handler no sandbox is created
		return strings.HasPrefix(failure, "pod sandbox: ") || strings.Contains(failure, "runtime handler")
	})
}

func imageText(f *facts) string {
	name, w := f.blocking.Name, f.blocking.State.Waiting
	field := "spec.containers[" + name + "].image"
	changed := f.note(func(e *journal.Entry) bool { return e.Decision == "changed" && strings.Contains(e.Why, field) }, func(e *journal.Entry) string {
		return fmt.Sprintf(" It was changed%s: %s.", f.ago(e.Time), changeOf(e.Why, field))
	})
	cause := OneLine(w.Message)
	if _, text, ok := strings.Cut(cause, "ErrImagePull: "); ok {
		cause = text
	}
	cause = strings.TrimSuffix(pullCause(cause), ".")
	if w.Reason == lifecycle.ErrImageNeverPull && strings.Contains(cause, "is not present") {
		changed += ` Bring it with "berth image import" or "berth image pull", or set imagePullPolicy: IfNotPresent.`
	}
	if pulls := pulls(f); pulls != "" {
		return fmt.Sprintf("is waiting for the image of container %q.%s The try before failed: %s.%s", name, pulls, cause, changed)
	}
	return fmt.Sprintf("is waiting: the image of container %q, %s, is not available (%s): %s.%s%s",
		name, f.container(name).Image, w.Reason, cause, credentialsTried(f, name), changed)
}

// pullCause returns the cause of a failed pull without the image name, which is reported
// separately.
func pullCause(message string) string {
	return notFoundName.ReplaceAllString(pullWrapping.ReplaceAllString(message, ""), "${1}not found")
}

// credentialsTried reports which credentials the last pull of the container's image used, and which
// it lacked.
func credentialsTried(f *facts, container string) string {
	asked := func(e *journal.Entry) bool { return strings.Contains(e.Why, "; asked ") && from("image", "*")(e) }
	return f.note(match(asked).of(container), func(e *journal.Entry) string {
		_, tried, _ := strings.Cut(e.Why, "; asked ")
		return fmt.Sprintf(" The registry was asked %s.", OneLine(tried)) +
			f.note(from("", "go on without some image pull secrets").of(container), func(e *journal.Entry) string {
				return fmt.Sprintf(" Left out: %s.", strings.TrimSuffix(OneLine(e.Error), "."))
			})
	})
}
