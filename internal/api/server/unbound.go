package server

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"berth/internal/explain"
	"berth/internal/record/journal"
)

// Scheduler explains pods without a node.
type Scheduler interface {
	// Explain returns why a pod has no node; nil if there is no pod of that name without a node.
	Explain(namespace, name string) *explain.Unbound
	// Unbound returns the pods that have no node and have not terminated.
	Unbound() []*v1.Pod
}

// addUnbound adds the pod of that name without a node, if there is one, with its timeline at the
// end. The journal has none of a pod that was never tried, such as one with scheduling gates.
func (x *Explain) addUnbound(e *explain.Report, namespace, name string) {
	if x.Scheduler == nil || namespace == "" {
		return
	}
	u := x.Scheduler.Explain(namespace, name)
	if u == nil {
		return
	}
	e.Unbound, e.Pods = u, append(e.Pods, u.Pod)
	timeline := journal.Timeline{Subject: subjectOf(u.Pod), Seen: u.Pod.CreationTimestamp.Time, Entries: []journal.Entry{}}
	if i := slices.IndexFunc(e.Stories, func(t journal.Timeline) bool { return t.Subject.UID == u.UID }); i >= 0 {
		timeline.Milestones, timeline.Entries = e.Stories[i].Milestones, e.Stories[i].Entries
		e.Stories = slices.Delete(e.Stories, i, i+1)
	}
	e.Stories = append(e.Stories, timeline)
}

// unboundSubjects returns the pods without a node that the journal does not have.
func (x *Explain) unboundSubjects() (subjects []journal.Subject) {
	if x.Scheduler == nil {
		return nil
	}
	for _, p := range x.Scheduler.Unbound() {
		if _, known := x.Journal.SubjectOf(p.UID); !known {
			subjects = append(subjects, subjectOf(p))
		}
	}
	return subjects
}

func subjectOf(p *v1.Pod) journal.Subject {
	return journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name}
}
