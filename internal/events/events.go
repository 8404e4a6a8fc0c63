// Package events is the event recorder: what the agent tells users about a pod, in the words of the kubelet's events.
//
// Owns: the form of events and their object references (containerRefManager): which container of which pod an event is about.
// Reads: nothing.
// Never: blocks the caller.
package events

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/journal"
)

// Recorder records events in the pod's journal and, where there is an API server, sends them there.
type Recorder struct {
	journal *journal.Journal
	sender  *Sender // nil without an API server
	node    string
	// translate returns the UID under which the API server knows a pod: that of the mirror of a static pod.
	translate func(p *v1.Pod) types.UID
}

// New returns a recorder for the journal alone.
func New(j *journal.Journal) *Recorder { return &Recorder{journal: j} }

// NewWithSender returns a recorder that also sends. translate returns the UID under which the API server knows a pod, "" when it does not.
func NewWithSender(j *journal.Journal, s *Sender, node string, translate func(p *v1.Pod) types.UID) *Recorder {
	return &Recorder{journal: j, sender: s, node: node, translate: translate}
}

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
	if r.sender == nil {
		return
	}
	uid := r.translate(p)
	if uid == "" {
		return
	}
	ref := v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: uid, ResourceVersion: p.ResourceVersion}
	if container != "" {
		ref.FieldPath = FieldPath(p, container)
	}
	r.sender.Send(ref, eventtype, reason, message)
}

// NodeEvent records one event about the node; without an API server it is nobody's.
func (r *Recorder) NodeEvent(eventtype, reason, message string) {
	if r.sender != nil {
		r.sender.Send(v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: r.node, UID: types.UID(r.node)}, eventtype, reason, message)
	}
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
