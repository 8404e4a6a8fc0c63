package quarantine

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"berth/internal/journal"
	"berth/internal/pod"
)

// component is the name under which the quarantine writes to the journal.
const component = "quarantine"

// recordCrash says that the last agent crashed with the pod in hand.
func (q *Quarantine) recordCrash(s suspect) {
	q.Journal.Record(journal.Entry{
		Subject: q.subjectOf(s.UID), Component: component, Error: s.Report,
		Decision: fmt.Sprintf("the agent crashed with the pod in hand, for the %s time in a day", ordinal(len(s.Crashes))),
	})
}

// recordSetAside says that the pod, which was about to be touched, is not.
func (q *Quarantine) recordSetAside(s suspect) {
	const rule = "Its containers go on. It is touched again when its spec changes, or after \"berth release\"."
	q.Journal.Record(journal.Entry{
		Subject: q.subjectOf(s.UID), Component: component, Decision: "the pod is set aside", Error: s.Report,
		Why: fmt.Sprintf("the agent crashed %d times with it in hand; %s", len(s.Crashes), rule),
	})
	if p, ok := q.Pod(s.UID); ok {
		q.Events.Eventf(p, "", v1.EventTypeWarning, "Quarantined",
			"The node agent crashed %d times with this pod in hand and leaves it alone. %s", len(s.Crashes), rule)
	}
}

// subjectOf names a pod of which only the UID is known.
func (q *Quarantine) subjectOf(uid pod.UID) journal.Subject {
	if s, ok := q.Journal.SubjectOf(uid); ok {
		return s
	}
	return journal.Subject{UID: uid}
}

func ordinal(n int) string {
	switch n {
	case 1:
		return "1st"
	case 2:
		return "2nd"
	case 3:
		return "3rd"
	}
	return fmt.Sprintf("%dth", n)
}
