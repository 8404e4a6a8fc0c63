package pleg

import (
	"errors"
	"time"

	"berth/internal/record/journal"
)

// noteOutage records in the journals of active pods that the runtime has recovered, except for the
// first connection of an agent.
func (g *PLEG) noteOutage(outage error) {
	if !g.hasRelisted() {
		return
	}
	e := journal.Entry{Component: "pleg", Decision: "the container runtime answers again", Why: "containers go on without it; nothing of the pod was restarted for it"}
	if since, ok := errors.AsType[interface {
		error
		Since() time.Time
	}](outage); ok {
		e.Took = time.Since(since.Since()).Round(time.Millisecond)
	}
	g.mu.Lock()
	var subjects []journal.Subject
	for uid, known := range g.entries {
		if s := known.status; s != nil && s.Active() {
			subjects = append(subjects, journal.Subject{UID: uid, Namespace: s.Namespace, Name: s.Name})
		}
	}
	g.mu.Unlock()
	for _, e.Subject = range subjects {
		g.journal.Record(e)
	}
}
