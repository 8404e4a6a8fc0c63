package prober

import (
	"container/list"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
)

type kind int

const (
	liveness kind = iota
	readiness
	startup
	kinds
)

func (k kind) String() string { return [...]string{"liveness", "readiness", "startup"}[k] }

// title is the kind as the prefix of events.
func (k kind) title() string { return [...]string{"Liveness", "Readiness", "Startup"}[k] }

// initial is the result before the first attempt: the container is not killed, and gets no traffic.
func (k kind) initial() pod.ProbeVerdict {
	return [...]pod.ProbeVerdict{liveness: pod.ProbeSuccess, readiness: pod.ProbeFailure, startup: pod.ProbeUnknown}[k]
}

// thresholds are the period of a probe and the consecutive results that change its result.
type thresholds struct {
	period           time.Duration
	success, failure int
}

// thresholdsOf returns the probe's thresholds, with the API's defaults.
func thresholdsOf(p *v1.Probe) thresholds {
	or := func(v, unset int32) int {
		if v > 0 {
			return int(v)
		}
		return int(unset)
	}
	return thresholds{
		period:  time.Duration(or(p.PeriodSeconds, 10)) * time.Second,
		success: or(p.SuccessThreshold, 1),
		failure: or(p.FailureThreshold, 3),
	}
}

// tally is a result and the attempts since that may change it.
type tally struct {
	verdict pod.ProbeVerdict
	// confirmed is true if the verdict follows from attempts, instead of being the initial one.
	confirmed bool
	last      pod.ProbeVerdict // of the newest attempt
	inARow    int              // number of consecutive equal results up to the newest
}

// nextTally counts one more attempt with the result success or failure.
func nextTally(t tally, result pod.ProbeVerdict, th thresholds) tally {
	if result != t.last {
		t.last, t.inARow = result, 0
	}
	t.inARow++
	if needed := th.needed(result); t.inARow >= needed {
		t.verdict, t.confirmed = result, true
	}
	return t
}

func (th thresholds) needed(result pod.ProbeVerdict) int {
	if result == pod.ProbeSuccess {
		return th.success
	}
	return th.failure
}

type probe struct {
	kind       kind
	container  *container
	spec       *v1.Probe
	thresholds thresholds
	counts     counts // of all incarnations

	// Of the newest incarnation:
	tally
	held      bool      // until a new incarnation: its result is final, or not needed any more
	notBefore time.Time // of the first attempt
	began     time.Time // the newest attempt; zero before the first

	// State of the schedule: in the heap, in a queue, running, or none of these.
	due        time.Time
	index      int           // in the heap, or notInHeap
	queue      *list.List    // the queue in which it waits, or nil
	element    *list.Element // in queue
	since      time.Time     // when it was added to queue
	podLimited bool          // it has waited for another attempt of its pod
	current    *attempt      // running, or nil
	late       bool          // the newest attempt began late
}

// begin resets the probe for a new incarnation. known is an earlier agent's result.
func (p *probe) begin(known pod.ProbeVerdict) {
	p.tally, p.held, p.notBefore, p.began = tally{verdict: p.kind.initial()}, false, time.Time{}, time.Time{}
	if known != pod.ProbeUnknown {
		p.tally = tally{verdict: known, confirmed: true}
	}
	p.hold()
}

// hold stops the attempts on this incarnation if its result is final.
func (p *probe) hold() {
	final := p.kind == liveness && p.verdict == pod.ProbeFailure || p.kind == startup && p.verdict != pod.ProbeUnknown
	p.held = p.held || final
}

// end stops the probe of a terminating pod unless it is a readiness probe or of a sidecar: its
// result has no effect.
func (p *probe) end() {
	if p.kind == readiness || p.container.sidecar {
		return
	}
	p.tally, p.held = tally{verdict: pod.ProbeSuccess}, true
}

func (p *probe) isActive() bool {
	s := p.container.probes[startup]
	return p.container.running && !p.held && (p.kind == startup || s == nil || s.verdict == pod.ProbeSuccess)
}

// isIdle reports whether the probe has no deadline, is not queued and not running.
func (p *probe) isIdle() bool { return p.index == notInHeap && p.queue == nil && p.current == nil }

// entry returns an entry for the pod's journal.
func (p *probe) entry(decision string) journal.Entry {
	o := p.container.pod.pod
	return journal.Entry{
		Subject:   journal.Subject{UID: o.UID, Namespace: o.Namespace, Name: o.Name},
		Component: "probe", Container: p.container.spec.Name, Decision: decision,
	}
}
