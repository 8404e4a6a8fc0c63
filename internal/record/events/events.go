// Package events is the event recorder: it reports to users about a pod with the kubelet's events.
//
// Owns: the form of events and their object references (containerRefManager): the pod and container
// of an event; the node's record of its events (Store) and its file; the rules of event
// aggregation.
// Reads: nothing.
// Never: blocks the caller.
package events

import (
	"cmp"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/record/journal"
)

// Config names the destinations of events. All fields except Journal are optional.
type Config struct {
	// Journal records them as entries of their pods.
	Journal *journal.Journal
	// Store stores them like the API server.
	Store *Store
	// Sender sends them to the API server. Events of a static pod have its own UID there, too:
	// clients find it in an annotation of the mirror.
	Sender *Sender
	// Node is the node's name, for events about it.
	Node string
}

// Recorder records events in the pod's journal and in the store, and sends them if there is an API
// server.
type Recorder struct {
	Config
}

// New returns a recorder that writes only to the journal.
func New(j *journal.Journal) *Recorder { return NewRecorder(Config{Journal: j}) }

// NewRecorder returns a recorder for the configured destinations.
func NewRecorder(c Config) *Recorder { return &Recorder{Config: c} }

// Event records one event. container is the container's name, or "" for the pod; eventtype is
// v1.EventTypeNormal or v1.EventTypeWarning.
func (r *Recorder) Event(p *v1.Pod, container, eventtype, reason, message string) {
	r.podEvent(p, container, occurrence{eventtype: eventtype, reason: reason, message: message, at: time.Now()})
}

// AnnotatedEvent records one event with annotations about a pod, for programs that read events.
func (r *Recorder) AnnotatedEvent(p *v1.Pod, annotations map[string]string, eventtype, reason, message string) {
	r.podEvent(p, "", occurrence{annotations: annotations, eventtype: eventtype, reason: reason, message: message, at: time.Now()})
}

func (r *Recorder) podEvent(p *v1.Pod, container string, o occurrence) {
	e := journal.Entry{
		Subject:   journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name},
		Component: "event", Decision: o.reason, Why: o.message, Container: container,
	}
	if o.eventtype == v1.EventTypeWarning {
		e.Why, e.Error = "", o.message
	}
	r.Journal.Record(e)
	if r.Sender == nil && r.Store == nil {
		return
	}
	o.ref = v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion}
	if container != "" {
		o.ref.FieldPath = FieldPath(p, container)
	}
	if r.Store != nil {
		r.Store.add(o)
	}
	if r.Sender != nil {
		r.Sender.take(o)
	}
}

// NodeEvent records one event about the node.
func (r *Recorder) NodeEvent(eventtype, reason, message string) {
	r.add(v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: r.Node, UID: types.UID(r.Node)}, eventtype, reason, message)
}

// ClaimEvent records one event about a claim.
func (r *Recorder) ClaimEvent(c *v1.PersistentVolumeClaim, eventtype, reason, message string) {
	r.add(v1.ObjectReference{
		Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion,
	}, eventtype, reason, message)
}

// VolumeEvent records one event about a persistent volume.
func (r *Recorder) VolumeEvent(v *v1.PersistentVolume, eventtype, reason, message string) {
	r.add(v1.ObjectReference{
		Kind: "PersistentVolume", APIVersion: "v1", Name: v.Name, UID: v.UID, ResourceVersion: v.ResourceVersion,
	}, eventtype, reason, message)
}

// add records an event about an object other than a pod.
func (r *Recorder) add(ref v1.ObjectReference, eventtype, reason, message string) {
	if r.Store != nil {
		r.Store.Add(ref, eventtype, reason, message)
	}
	if r.Sender != nil {
		r.Sender.Send(ref, eventtype, reason, message)
	}
}

// Eventf is Event with a format.
func (r *Recorder) Eventf(p *v1.Pod, container, eventtype, reason, format string, args ...any) {
	r.Event(p, container, eventtype, reason, fmt.Sprintf(format, args...))
}

// FieldPath returns the field path of a container: spec.containers{name}, spec.initContainers{name}
// or spec.ephemeralContainers{name}.
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

// newEvent returns an event about the object with its name and source. number makes the name
// unique.
func newEvent(ref *v1.ObjectReference, source v1.EventSource, number int64) *v1.Event {
	return &v1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: eventName(ref, number), Namespace: cmp.Or(ref.Namespace, metav1.NamespaceDefault)},
		InvolvedObject: *ref, Source: source, ReportingController: source.Component, ReportingInstance: source.Host,
	}
}

func eventName(ref *v1.ObjectReference, number int64) string {
	return fmt.Sprintf("%s.%x", ref.Name, number)
}
