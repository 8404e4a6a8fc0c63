package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
)

// barWidth is the maximum width of a bar in columns.
const barWidth = 30

// stepCompleted is the exit of an init container, which the journal records without a milestone.
const stepCompleted = "completed"

// span is one row of the waterfall: a step, and the time from the end of the previous step to its
// own.
type span struct {
	step, container string
	from, to        time.Time
	open            bool // unfinished: to is now
}

func (s span) took() time.Duration { return s.to.Sub(s.from) }

// String describes what is awaited.
func (s span) String() string {
	switch {
	case s.step == stepCompleted:
		return fmt.Sprintf("the end of init container %q", s.container)
	case s.step == journal.Ready.String():
		return "it to be ready"
	case s.step == journal.Bound.String():
		return "it to be bound"
	case s.step == journal.Created.String(), s.step == journal.Started.String():
		return fmt.Sprintf("container %q to be %s", s.container, s.step)
	case s.container != "":
		return fmt.Sprintf("the %s of container %q", s.step, s.container)
	}
	if s.step == journal.Admitted.String() {
		return "its admission"
	}
	return "its " + s.step
}

// waterfall explains the pod's first start.
type waterfall struct{ explainer }

// spans returns the steps of the pod's first start in completion order. The last one is open until
// the pod has been ready.
func (s waterfall) spans() []span {
	marks := s.timeline.Milestones
	if s.timeline.Subject.UID == "" || len(marks) == 0 && !s.isStarting() {
		return nil
	}
	ready := slices.IndexFunc(marks, func(m journal.Milestone) bool { return m.Step == journal.Ready })
	if ready >= 0 {
		marks = marks[:ready+1] // later steps, such as an ephemeral container, are not part of the start
	}
	var out []span
	if len(marks) == 0 || !s.timeline.Seen.After(marks[0].Time) {
		out = append(out, span{step: journal.Seen.String(), to: s.timeline.Seen})
	}
	for _, e := range s.completed() {
		if ready < 0 || !e.Finished.After(marks[ready].Time) {
			out = append(out, span{step: stepCompleted, container: e.Container, to: e.Finished})
		}
	}
	for _, m := range marks {
		out = append(out, span{step: m.Step.String(), container: m.Container, to: m.Time})
	}
	for i := range s.timeline.Entries { // started, but not observed since
		e := &s.timeline.Entries[i]
		known := slices.ContainsFunc(marks, func(m journal.Milestone) bool { return m.Step == journal.Started && m.Container == e.Container })
		if ready < 0 && !known && e.Decision == "container started" && e.Error == "" && len(marks) > 0 {
			out = append(out, span{step: journal.Created.String(), container: e.Container, to: e.Time}, span{step: journal.Started.String(), container: e.Container, to: e.Time})
		}
	}
	slices.SortStableFunc(out, func(a, b span) int { return a.to.Compare(b.to) })
	if ready < 0 && s.isStarting() {
		step, container := s.underWay(out)
		out = append(out, span{step: step, container: container, to: s.now, open: true})
	}
	out[0].from = out[0].to
	for i := range out[1:] {
		out[i+1].from = out[i].to
	}
	return out
}

// completed returns the exits with code 0 of the pod's init containers, without sidecar containers.
func (s waterfall) completed() (ends []journal.End) {
	if s.pod == nil {
		return nil
	}
	for i := range s.pod.Spec.InitContainers {
		c := &s.pod.Spec.InitContainers[i]
		if lifecycle.IsSidecar(c) {
			continue
		}
		done := slices.IndexFunc(s.timeline.Ends, func(e journal.End) bool { return e.Container == c.Name && e.ExitCode == 0 })
		if done >= 0 {
			ends = append(ends, s.timeline.Ends[done])
		}
	}
	return ends
}

// isStarting reports whether the pod has not been ready yet and still can be.
func (s waterfall) isStarting() bool {
	return s.pod != nil && s.pod.UID == s.timeline.Subject.UID && s.pod.DeletionTimestamp == nil &&
		!pod.IsTerminal(s.pod.Status.Phase) && !lifecycle.IsTrue(s.pod, v1.PodReady) && s.e.Quarantined[s.pod.UID] == ""
}

// underWay returns the first unfinished step.
func (s waterfall) underWay(done []span) (step, container string) {
	missing := func(step journal.Step, container string) bool {
		return !slices.ContainsFunc(done, func(d span) bool { return d.step == step.String() && d.container == container })
	}
	if s.isUnbound() {
		return journal.Bound.String(), ""
	}
	if claims(s).failsNow() {
		return stepClaims, ""
	}
	if s.sandboxFails() {
		return journal.Sandbox.String(), ""
	}
	for _, step := range []journal.Step{journal.Admitted, journal.Cgroup, journal.Volumes, journal.Sandbox} {
		if missing(step, "") {
			return step.String(), ""
		}
	}
	spec := &s.pod.Spec
	for i := range slices.Concat(spec.InitContainers, spec.Containers) {
		plain := i < len(spec.InitContainers) && !lifecycle.IsSidecar(&spec.InitContainers[i])
		var c *v1.Container
		if i < len(spec.InitContainers) {
			c = &spec.InitContainers[i]
		} else {
			c = &spec.Containers[i-len(spec.InitContainers)]
		}
		steps := []journal.Step{journal.Image, journal.Created, journal.Started}
		if c.Lifecycle != nil && c.Lifecycle.PostStart != nil {
			steps = append(steps, journal.Hook)
		}
		if c.StartupProbe != nil {
			steps = append(steps, journal.Startup)
		}
		for _, step := range steps {
			if missing(step, c.Name) {
				return step.String(), c.Name
			}
		}
		if plain && !slices.ContainsFunc(done, func(d span) bool { return d.step == stepCompleted && d.container == c.Name }) {
			return stepCompleted, c.Name
		}
	}
	return journal.Ready.String(), ""
}

// sandboxFails reports whether the last try to start the pod failed at its sandbox. That also
// cancels parallel steps, such as its volumes.
func (s explainer) sandboxFails() bool {
	for _, e := range slices.Backward(s.timeline.Entries) {
		if e.Component == "worker" {
			failed := where.ReplaceAllString(e.Error, "")
			return strings.HasPrefix(failed, "pod sandbox: ") || strings.Contains(failed, "runtime handler") // without a handler no sandbox is created
		}
	}
	return false
}

// fewer joins the shortest neighbours until at most most rows remain.
func fewer(spans []span, most int) []span {
	out := slices.Clone(spans)
	for len(out) > max(most, 2) {
		least := 0
		for i := range len(out) - 2 { // the last row stays separate
			if out[i+1].to.Sub(out[i].from) < out[least+1].to.Sub(out[least].from) {
				least = i
			}
		}
		a, b := out[least], out[least+1]
		first, _, _ := strings.Cut(a.step, " … ")
		if _, last, joined := strings.Cut(b.step, " … "); joined {
			b.step = last
		}
		joined := span{step: first + " … " + b.step, from: a.from, to: b.to}
		if a.container == b.container || a.container == "" {
			joined.container = b.container
		}
		out = slices.Replace(out, least, least+2, joined)
	}
	return out
}

// start draws the waterfall of the pod's first start in at most most rows below two headings: the
// completion time of each step, and the time since the previous one as a bar. Without rows, it
// returns the title.
func (s waterfall) start(most int) []string {
	spans := s.spans()
	if len(spans) == 0 {
		return nil
	}
	first, last := spans[0].to, spans[len(spans)-1]
	whole := last.to.Sub(first)
	title := "Start, on " + first.In(s.zone).Format(time.DateOnly)
	switch {
	case last.open:
		title += ": not ready yet after " + roundDuration(whole).String()
	case last.step == journal.Ready.String():
		title += ": ready after " + roundDuration(whole).String()
	default:
		title += ": never ready"
	}
	longest := slices.MaxFunc(spans, func(a, b span) int { return cmp.Compare(a.took(), b.took()) })
	if longest.took() > 0 {
		title += fmt.Sprintf(", longest wait %s for %s", roundDuration(longest.took()), longest)
	}
	if most == 0 {
		return []string{title}
	}
	rows := [][]string{{"STEP", "CONTAINER", "AT", "SO FAR", ""}}
	for _, sp := range fewer(spans, most) {
		at := sp.to.In(s.zone).Format("15:04:05.000")
		if sp.open {
			at = "under way"
		}
		rows = append(rows, []string{
			sp.step, sp.container, at, "+" + roundDuration(sp.to.Sub(first)).String(),
			bar(sp, first, whole),
		})
	}
	var t table
	return append([]string{title}, t.lines(rows)...)
}

// bar draws the step as a part of the whole duration, which began at first.
func bar(s span, first time.Time, whole time.Duration) string {
	if whole <= 0 || !s.to.After(s.from) {
		return ""
	}
	from, to := int(s.from.Sub(first)*barWidth/whole), int(s.to.Sub(first)*barWidth/whole)
	switch {
	case from == to:
		return strings.Repeat(" ", min(from, barWidth-1)) + "▏"
	case s.open:
		return strings.Repeat(" ", from) + strings.Repeat("░", to-from)
	}
	return strings.Repeat(" ", from) + strings.Repeat("█", to-from)
}
