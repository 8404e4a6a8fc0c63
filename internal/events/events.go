// Package events is the event recorder: what the agent tells users about a pod, in the words of the kubelet's events.
//
// Owns: the form of events and their object references (containerRefManager): which container of which pod an event is about.
// Reads: nothing.
// Never: blocks the caller.
package events

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"berth/internal/journal"
)

// Recorder records events in the pod's journal.
type Recorder struct {
	journal *journal.Journal
}

// New returns a recorder.
func New(j *journal.Journal) *Recorder { return &Recorder{journal: j} }

// Event records one event. container names the container that it is about, or is "" for the pod; eventtype is v1.EventTypeNormal or v1.EventTypeWarning.
func (r *Recorder) Event(p *v1.Pod, container, eventtype, reason, message string) {
	e := journal.Entry{
		Subject:   journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name},
		Component: "event", Decision: reason, Why: message, Container: container,
	}
	if eventtype == v1.EventTypeWarning {
		e.Why, e.Error = "", message
	}
	r.journal.Record(e)
}

// Eventf is Event with a format.
func (r *Recorder) Eventf(p *v1.Pod, container, eventtype, reason, format string, args ...any) {
	r.Event(p, container, eventtype, reason, fmt.Sprintf(format, args...))
}

// FieldPath returns the event's reference to a container: spec.containers{name}, spec.initContainers{name} or spec.ephemeralContainers{name}.
func FieldPath(p *v1.Pod, container string) string {
	for i := range p.Spec.InitContainers {
		if p.Spec.InitContainers[i].Name == container {
			return "spec.initContainers{" + container + "}"
		}
	}
	for i := range p.Spec.EphemeralContainers {
		if p.Spec.EphemeralContainers[i].Name == container {
			return "spec.ephemeralContainers{" + container + "}"
		}
	}
	return "spec.containers{" + container + "}"
}
