package prober

import (
	"context"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/runtime/action"
)

const (
	// tries is the number of immediate tries of an attempt that could not be made.
	tries = 3
	// journalOutput is the number of bytes of an attempt's output in the journal.
	journalOutput = 1 << 10
)

// Run runs probes until ctx is done and every attempt has returned.
func (m *Manager) Run(ctx context.Context) error {
	writing, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	var writer sync.WaitGroup
	writer.Go(func() { _ = m.file.Writer.Run(writing) }) // returns when its context is done
	m.loop(ctx)
	stopWriting()
	writer.Wait()
	return ctx.Err()
}

// loop starts attempts when they are due. There is a timer only while there is a deadline.
func (m *Manager) loop(ctx context.Context) {
	var attempts sync.WaitGroup
	defer attempts.Wait()
	var timer *time.Timer
	for {
		m.mu.Lock()
		now := time.Now()
		due := m.schedule.takeDue(ctx, now)
		until := m.schedule.next()
		m.schedule.until = until
		m.schedule.rounds++
		m.mu.Unlock()
		for _, a := range due {
			attempts.Go(func() { m.try(a) })
		}
		var expired <-chan time.Time
		switch {
		case until.IsZero() && timer != nil:
			timer.Stop()
		case until.IsZero():
		case timer == nil:
			timer = time.NewTimer(until.Sub(now))
			defer timer.Stop()
			expired = timer.C
		default:
			timer.Reset(until.Sub(now))
			expired = timer.C
		}
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-expired:
		}
	}
}

// try makes the attempt and processes its result.
func (m *Manager) try(a *attempt) {
	if a.note != nil {
		m.Journal.Record(*a.note)
	}
	var r action.Result
	for range tries {
		if r = m.Actions.Probe(a.ctx, a.target, a.probe.spec); r.Outcome != action.Unknown || a.ctx.Err() != nil {
			break
		}
	}
	m.finish(a, r)
}

// finish counts the result, schedules the next attempt and reports changes.
func (m *Manager) finish(a *attempt, r action.Result) {
	m.mu.Lock()
	now := time.Now()
	ended := a.ctx.Err() != nil // the agent stops, or the pod or incarnation has ended
	m.schedule.finish(a)
	p := a.probe
	if p.current != a || ended {
		m.unlock()
		return
	}
	p.current = nil
	p.counts.add(r.Outcome, now.Sub(a.began))
	owner := p.container.pod.pod
	changed, entry := m.countLocked(a, r, now)
	if p.isActive() {
		// From the attempt's beginning rather than its deadline, so that attempts that waited for
		// each other spread out.
		m.schedule.set(p, later(now, a.began.Add(p.thresholds.period)))
	}
	m.unlock()

	if e := a.event(r); e != (event{}) {
		m.Recorder.Event(owner, p.container.spec.Name, v1.EventTypeWarning, e.reason, e.message)
	}
	if entry != nil {
		m.Journal.Record(*entry)
	}
	if changed {
		m.results.Put(owner.UID)
	}
}

// countLocked counts the attempt towards the result. It reports whether the result changed, and
// returns the journal entry for it; also for an initial failure once it is confirmed.
func (m *Manager) countLocked(a *attempt, r action.Result, now time.Time) (changed bool, entry *journal.Entry) {
	p := a.probe
	result := pod.ProbeSuccess
	switch r.Outcome {
	case action.Unknown:
		return false, nil
	case action.Failure:
		result = pod.ProbeFailure
	}
	before := p.tally
	p.tally = nextTally(p.tally, result, p.thresholds)
	p.hold()
	changed = p.verdict != before.verdict
	if changed {
		m.unsaved.Put(p.container.pod.pod.UID)
	}
	if !changed && (before.confirmed || !p.confirmed || p.verdict == pod.ProbeSuccess) {
		return false, nil
	}
	e := p.entry(p.kind.String() + " probe: " + p.verdict.String())
	e.Why, e.Took = p.reason(), now.Sub(a.began)
	if result == pod.ProbeFailure {
		e.Error = clip(r.Output, journalOutput)
	}
	if changed && p.kind == startup && p.verdict == pod.ProbeSuccess {
		m.Journal.Reach(e.Subject, journal.Startup, e.Container)
	}
	if changed && p.kind == startup {
		m.armLocked(p.container, now) // those that waited for it
	}
	return changed, &e
}

// reason describes the cause of the result.
func (p *probe) reason() string {
	if p.verdict == pod.ProbeSuccess {
		return fmt.Sprintf("successes in a row: %d, successThreshold: %d", p.inARow, p.thresholds.success)
	}
	return fmt.Sprintf("failures in a row: %d, failureThreshold: %d", p.inARow, p.thresholds.failure)
}

type event struct{ reason, message string }

// event returns the event for the attempt; empty for a success without a warning.
func (a *attempt) event(r action.Result) event {
	switch title := a.probe.kind.title(); r.Outcome {
	case action.Failure:
		return event{"Unhealthy", fmt.Sprintf("%s probe failed: %s", title, r.Output)}
	case action.Warning:
		return event{"ProbeWarning", fmt.Sprintf("%s probe warning: %s", title, r.Output)}
	case action.Unknown:
		return event{"Unhealthy", fmt.Sprintf("%s probe errored and resulted in %s state: %s", title, r.Outcome, r.Output)}
	default:
		return event{}
	}
}

// clip truncates the text to most bytes.
func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "…"
}
