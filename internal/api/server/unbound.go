package server

import (
	"berth/internal/localapi/scheduler"
	"berth/internal/record/journal"

	v1 "k8s.io/api/core/v1"
)

// Scheduler explains pods without a node.
type Scheduler interface {
	// Explain returns what holds a pod; nil if there is no pod of that name without a node.
	Explain(namespace, name string) *scheduler.Unbound
	// Unbound returns the pods that have no node and have not terminated.
	Unbound() []*v1.Pod
}

// addUnbound adds the pod of that name that has no node yet, if there is one. The journal has
// nothing of it: its story is what was reported about its scheduling.
func (h *Handlers) addUnbound(e *Explanation, namespace, name string) {
	if h.Scheduler == nil || namespace == "" {
		return
	}
	u := h.Scheduler.Explain(namespace, name)
	if u == nil {
		return
	}
	e.Unbound, e.Pods = u, append(e.Pods, u.Pod)
	story := journal.Timeline{Subject: subjectOf(u.Pod), Seen: u.Pod.CreationTimestamp.Time, Entries: []journal.Entry{}}
	for _, event := range u.Events {
		story.Entries = append(story.Entries, journal.Entry{
			Time: event.EventTime.Time, Subject: story.Subject, Component: "scheduler", Decision: event.Reason, Why: event.Message,
		})
	}
	e.Stories = append(e.Stories, story)
}

// unboundSubjects returns the pods that can be explained without a journal.
func (h *Handlers) unboundSubjects() (subjects []journal.Subject) {
	if h.Scheduler == nil {
		return nil
	}
	for _, p := range h.Scheduler.Unbound() {
		subjects = append(subjects, subjectOf(p))
	}
	return subjects
}

func subjectOf(p *v1.Pod) journal.Subject {
	return journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name}
}
