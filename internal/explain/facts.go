package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
)

// facts are what an answer is computed from.
type facts struct {
	Report
	pod      *v1.Pod          // nil if the node has no such pod
	timeline journal.Timeline // of the pod, or of the last pod with its name
	now      time.Time
	zone     *time.Location
	blocking *v1.ContainerStatus // the first container that keeps the pod from running, or nil
	unready  *v1.ContainerStatus // the first container that is not ready, or nil
}

func newFacts(r Report, now time.Time, zone *time.Location) *facts {
	f := &facts{Report: r, now: now, zone: zone}
	for _, p := range r.Pods { // of two pods with the name, prefer the one that is not terminating
		if f.pod == nil || p.DeletionTimestamp == nil {
			f.pod = p
		}
	}
	for _, t := range r.Stories {
		if f.pod == nil || t.Subject.UID == f.pod.UID || f.timeline.Subject.Name == "" {
			f.timeline = t
		}
	}
	if f.pod != nil {
		f.findContainers()
	}
	return f
}

// findContainers sets blocking and unready.
func (f *facts) findContainers() {
	inits, containers := f.pod.Status.InitContainerStatuses, f.pod.Status.ContainerStatuses
	for i, cs := range slices.Concat(inits, containers) {
		done := cs.State.Terminated != nil && cs.State.Terminated.ExitCode == 0
		passed := cs.State.Running != nil || done && lifecycle.IsTrue(f.pod, v1.PodReady)
		if i < len(inits) {
			passed = done || lifecycle.HasSidecar(f.pod, cs.Name) && ptr.Deref(cs.Started, false)
		}
		if !passed && f.blocking == nil {
			f.blocking = &cs
		}
		if i >= len(inits) && !cs.Ready && f.unready == nil {
			f.unready = &cs
		}
	}
}

func (f *facts) statuses() []v1.ContainerStatus {
	return slices.Concat(f.pod.Status.InitContainerStatuses, f.pod.Status.ContainerStatuses, f.pod.Status.EphemeralContainerStatuses)
}

// container returns the specification of a container, or an empty one.
func (f *facts) container(name string) *v1.Container {
	if c := pod.FindContainer(&f.pod.Spec, name); c != nil {
		return c
	}
	return &v1.Container{}
}

// match reports whether a row concerns an entry of the journal.
type match func(e *journal.Entry) bool

// from matches a decision of a component, "" for any. A "*" at the end stands for any text.
func from(component, decision string) match {
	prefix, isPrefix := strings.CutSuffix(decision, "*")
	return func(e *journal.Entry) bool {
		return (component == "" || e.Component == component) && (e.Decision == decision || isPrefix && strings.HasPrefix(e.Decision, prefix))
	}
}

// of restricts a match to the entries of a container.
func (m match) of(container string) match {
	return func(e *journal.Entry) bool { return e.Container == container && m(e) }
}

func (m match) since(start time.Time) match {
	return func(e *journal.Entry) bool { return !e.Time.Before(start) && m(e) }
}

func (m match) until(end time.Time) match {
	return func(e *journal.Entry) bool { return !e.Time.After(end) && m(e) }
}

// last returns the newest entry that matches, or nil.
func (f *facts) last(m match) *journal.Entry {
	for i := range slices.Backward(f.timeline.Entries) {
		if e := &f.timeline.Entries[i]; m(e) {
			return e
		}
	}
	return nil
}

// lastSince is last among the entries since the newest one that start matches.
func (f *facts) lastSince(start, m match) *journal.Entry {
	e := f.last(func(e *journal.Entry) bool { return m(e) || start(e) })
	if e == nil || !m(e) {
		return nil
	}
	return e
}

// note formats the newest entry that matches; "" without one.
func (f *facts) note(m match, text func(e *journal.Entry) string) string {
	if e := f.last(m); e != nil {
		return text(e)
	}
	return ""
}

// why returns the inputs of the newest entry with the decision, after a colon.
func (f *facts) why(decision string) string {
	return f.note(func(e *journal.Entry) bool { return e.Decision == decision && e.Why != "" },
		func(e *journal.Entry) string { return ": " + OneLine(e.Why) })
}

// condition returns a condition of the pod, an empty one if it has none.
func (f *facts) condition(t v1.PodConditionType) v1.PodCondition {
	for _, c := range f.pod.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return v1.PodCondition{}
}

func (f *facts) at(t time.Time) string { return At(t, f.now, f.zone) }

func (f *facts) ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " " + duration.HumanDuration(max(0, f.now.Sub(t))) + " ago"
}

func (f *facts) since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return ", since " + duration.HumanDuration(max(0, f.now.Sub(t)))
}

func (f *facts) due(t time.Time) string {
	if d := t.Sub(f.now); d > 0 {
		return fmt.Sprintf("at %s, in %s", f.at(t), roundUp(d))
	}
	return "due now"
}
