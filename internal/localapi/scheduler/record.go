package scheduler

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/record/journal"
)

func subjectOf(p *v1.Pod) journal.Subject {
	return journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name}
}

func (s *Scheduler) record(p *v1.Pod, decision, why string) {
	s.cfg.Journal.Record(journal.Entry{Subject: subjectOf(p), Component: "scheduler", Decision: decision, Why: why})
}

// Shutdown is the shutdown of the machine.
type Shutdown interface {
	// Began returns when it has begun, zero if there is none. The agent rejects pods meanwhile.
	Began() time.Time
}

func (s *Scheduler) shutdownBegan() time.Time {
	if s.cfg.Shutdown == nil {
		return time.Time{}
	}
	return s.cfg.Shutdown.Began()
}
