package explain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
)

// stepCompleted is the exit of an init container, which the journal records without a milestone.
const stepCompleted = "completed"

// Step is a step of a pod's first start, and the time from the end of the previous step to its own.
type Step struct {
	Name      string    `json:"name"`
	Container string    `json:"container,omitempty"`
	From      time.Time `json:"from"`
	To        time.Time `json:"to"`
	// Open is true if the step is unfinished: To is now.
	Open bool `json:"open,omitempty"`
}

// Took returns the duration of the step.
func (s Step) Took() time.Duration { return s.To.Sub(s.From) }

// awaited describes what the step waits for.
func (s Step) awaited() string {
	switch s.Name {
	case stepCompleted:
		return fmt.Sprintf("the end of init container %q", s.Container)
	case journal.Ready.String(), journal.Bound.String():
		return "it to be " + s.Name
	case journal.Created.String(), journal.Started.String():
		return fmt.Sprintf("container %q to be %s", s.Container, s.Name)
	}
	switch {
	case s.Container != "":
		return fmt.Sprintf("the %s of container %q", s.Name, s.Container)
	case s.Name == journal.Admitted.String():
		return "its admission"
	}
	return "its " + s.Name
}

// startText describes how long the start took, and its longest step; "" without a start.
func startText(steps []Step, zone *time.Location) string {
	if len(steps) == 0 {
		return ""
	}
	first, last := steps[0].To, steps[len(steps)-1]
	text, took := "Start, on "+first.In(zone).Format(time.DateOnly), RoundDuration(last.To.Sub(first))
	switch {
	case last.Open:
		text += fmt.Sprintf(": not ready yet after %s", took)
	case last.Name == journal.Ready.String():
		text += fmt.Sprintf(": ready after %s", took)
	default:
		text += ": never ready"
	}
	longest := slices.MaxFunc(steps, func(a, b Step) int { return cmp.Compare(a.Took(), b.Took()) })
	if longest.Took() > 0 {
		text += fmt.Sprintf(", longest wait %s for %s", RoundDuration(longest.Took()), longest.awaited())
	}
	return text
}

// startSteps returns the steps of the pod's first start in completion order. The last one is open
// until the pod has been ready.
func startSteps(f *facts) []Step {
	marks := f.timeline.Milestones
	if f.timeline.Subject.UID == "" || len(marks) == 0 && !isStarting(f) {
		return nil
	}
	ready := slices.IndexFunc(marks, func(m journal.Milestone) bool { return m.Step == journal.Ready })
	if ready >= 0 {
		marks = marks[:ready+1] // later steps, such as an ephemeral container, are not part of the start
	}
	var steps []Step
	add := func(name, container string, at time.Time) {
		steps = append(steps, Step{Name: name, Container: container, To: at})
	}
	if len(marks) == 0 || !f.timeline.Seen.After(marks[0].Time) {
		add(journal.Seen.String(), "", f.timeline.Seen)
	}
	for _, e := range completedInits(f) {
		if ready < 0 || !e.Finished.After(marks[ready].Time) {
			add(stepCompleted, e.Container, e.Finished)
		}
	}
	for _, m := range marks {
		add(m.Step.String(), m.Container, m.Time)
	}
	for _, e := range f.timeline.Entries { // started, but not observed since
		known := slices.ContainsFunc(marks, func(m journal.Milestone) bool { return m.Step == journal.Started && m.Container == e.Container })
		if ready < 0 && !known && e.Decision == "container started" && e.Error == "" && len(marks) > 0 {
			add(journal.Created.String(), e.Container, e.Time)
			add(journal.Started.String(), e.Container, e.Time)
		}
	}
	slices.SortStableFunc(steps, func(a, b Step) int { return a.To.Compare(b.To) })
	if ready < 0 && isStarting(f) {
		next := nextStep(f, steps)
		next.To, next.Open = f.now, true
		steps = append(steps, next)
	}
	steps[0].From = steps[0].To
	for i := range steps[1:] {
		steps[i+1].From = steps[i].To
	}
	return steps
}

// completedInits returns the exits with code 0 of the pod's init containers, without sidecar
// containers.
func completedInits(f *facts) (ends []journal.End) {
	if f.pod == nil {
		return nil
	}
	for i := range f.pod.Spec.InitContainers {
		c := &f.pod.Spec.InitContainers[i]
		completed := func(e journal.End) bool { return e.Container == c.Name && e.ExitCode == 0 }
		if i := slices.IndexFunc(f.timeline.Ends, completed); i >= 0 && !lifecycle.IsSidecar(c) {
			ends = append(ends, f.timeline.Ends[i])
		}
	}
	return ends
}

// isStarting reports whether the pod has not been ready yet and still can be.
func isStarting(f *facts) bool {
	return f.pod != nil && f.pod.UID == f.timeline.Subject.UID && f.pod.DeletionTimestamp == nil &&
		!pod.IsTerminal(f.pod.Status.Phase) && !lifecycle.IsTrue(f.pod, v1.PodReady) && f.Quarantined[f.pod.UID] == ""
}

func nextStep(f *facts, done []Step) Step {
	switch {
	case isUnbound(f):
		return Step{Name: journal.Bound.String()}
	case claimsFailNow(f):
		return Step{Name: stepClaims}
	case sandboxFails(f):
		return Step{Name: journal.Sandbox.String()}
	}
	wanted := []Step{}
	want := func(container string, steps ...journal.Step) {
		for _, s := range steps {
			wanted = append(wanted, Step{Name: s.String(), Container: container})
		}
	}
	want("", journal.Admitted, journal.Cgroup, journal.Volumes, journal.Sandbox)
	inits := f.pod.Spec.InitContainers
	for i, c := range slices.Concat(inits, f.pod.Spec.Containers) {
		want(c.Name, journal.Image, journal.Created, journal.Started)
		if c.Lifecycle != nil && c.Lifecycle.PostStart != nil {
			want(c.Name, journal.Hook)
		}
		if c.StartupProbe != nil {
			want(c.Name, journal.Startup)
		}
		if i < len(inits) && !lifecycle.IsSidecar(&c) {
			wanted = append(wanted, Step{Name: stepCompleted, Container: c.Name})
		}
	}
	for _, w := range wanted {
		if !slices.ContainsFunc(done, func(d Step) bool { return d.Name == w.Name && d.Container == w.Container }) {
			return w
		}
	}
	return Step{Name: journal.Ready.String()}
}
