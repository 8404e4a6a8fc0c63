package prober

import (
	"container/list"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
)

// kind is what a probe is for.
type kind int

const (
	liveness kind = iota
	readiness
	startup
	kinds
)

func (k kind) String() string { return [...]string{"liveness", "readiness", "startup"}[k] }

// title is the kind as events begin with it.
func (k kind) title() string { return [...]string{"Liveness", "Readiness", "Startup"}[k] }

// initial is the verdict on an incarnation that was not tried yet: it is not killed, and gets no
// traffic, for want of an answer.
func (k kind) initial() pod.ProbeVerdict {
	return [...]pod.ProbeVerdict{liveness: pod.ProbeSuccess, readiness: pod.ProbeFailure, startup: pod.ProbeUnknown}[k]
}

// thresholds say when a probe is tried and how many equal results in a row make a verdict.
type thresholds struct {
	period           time.Duration
	success, failure int
}

// thresholdsOf returns the probe's, or the API's defaults where it has none.
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

// tally is a verdict and the results since that may change it.
type tally struct {
	verdict pod.ProbeVerdict
	// confirmed: the verdict follows from results, instead of being what an incarnation begins
	// with.
	confirmed bool
	last      pod.ProbeVerdict // of the newest result
	inARow    int              // how many results up to the newest were equal
}

// nextTally counts one more result, which is success or failure.
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

// probe is one probe of one container.
type probe struct {
	kind      kind
	container *container
	spec      *v1.Probe
	thresholds
	counts counts // of all incarnations

	// Of the newest incarnation:
	tally
	held      bool      // until a new incarnation: its verdict is final, or nobody asks any more
	notBefore time.Time // of the first attempt
	began     time.Time // the newest attempt; zero before the first

	// Of the schedule. It is in the heap, in a queue, or under way, or neither.
	due     time.Time
	index   int           // in the heap, or notInHeap
	queue   *list.List    // in which it waits, or nil
	element *list.Element // in queue
	since   time.Time     // when it came into queue
	crowded bool          // it has waited for a place of its pod
	current *attempt      // under way, or nil
	late    bool          // the newest attempt began late
}

// begin makes the probe judge a new incarnation. known is what an earlier agent knew of it.
func (p *probe) begin(known pod.ProbeVerdict) {
	p.tally, p.held, p.notBefore, p.began = tally{verdict: p.kind.initial()}, false, time.Time{}, time.Time{}
	if known != pod.ProbeUnknown {
		p.tally = tally{verdict: known, confirmed: true}
	}
	p.hold()
}

// hold ends the attempts on this incarnation if its verdict is final.
func (p *probe) hold() {
	final := p.kind == liveness && p.verdict == pod.ProbeFailure || p.kind == startup && p.verdict != pod.ProbeUnknown
	p.held = p.held || final
}

// end ends the probe with its pod if it is one that ends then: nothing waits for it and nothing
// follows from it.
func (p *probe) end() {
	if p.kind == readiness || p.container.sidecar {
		return
	}
	p.tally, p.held = tally{verdict: pod.ProbeSuccess}, true
}

// runs reports whether the probe is to be tried again and again now.
func (p *probe) runs() bool {
	s := p.container.probes[startup]
	return p.container.running && !p.held && (p.kind == startup || s == nil || s.verdict == pod.ProbeSuccess)
}

// isIdle reports whether the probe has no deadline, waits for no place and is not under way.
func (p *probe) isIdle() bool { return p.index == notInHeap && p.queue == nil && p.current == nil }

// entry returns a line of the pod's journal.
func (p *probe) entry(decision string) journal.Entry {
	o := p.container.pod.pod
	return journal.Entry{
		Subject:   journal.Subject{UID: o.UID, Namespace: o.Namespace, Name: o.Name},
		Component: "probe", Container: p.container.spec.Name, Decision: decision,
	}
}
