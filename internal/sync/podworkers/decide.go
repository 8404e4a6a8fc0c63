package podworkers

import (
	"fmt"
	"math/rand/v2"
	"time"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/sync/admission"
	"berth/internal/sync/podsync"
)

// turn is what one turn of a worker decides from: a copy of the worker's state, and what was
// observed.
type turn struct {
	worker   *worker
	life     pod.Lifecycle
	work     work
	started  bool
	why      string
	first    bool // of its name: it may start
	next     bool // to be admitted; set with observed
	observed *pod.Status
}

// then says how a worker goes on after a decision.
type then int

const (
	goOn   then = iota // with the next step of the turn
	atOnce             // with another turn, at once
	wait               // with another turn, when something wakes the worker or when it is time
	leave              // not at all
)

// decision is what one step of a turn comes to. It is data: PodWorkers.apply carries it out.
type decision struct {
	then then
	// to is the state that the pod moves to; a pod that is there or further stays where it is.
	to pod.State
	// terminating: the containers begin to be stopped.
	terminating bool
	// why says in the journal why the pod ends, if not with its containers.
	why string
	// finished: nothing is left to do while the pod's source has it.
	finished bool
	// at is when the worker takes its next turn, unless it is woken before; zero: not by time.
	// backOff is the longest time until then, with some jitter; zero: there is none.
	at      time.Time
	backOff time.Duration
	// entry is written to the pod's journal unless it is empty.
	entry journal.Entry
}

// outcome is what came of a call of a turn.
type outcome struct {
	err    error
	killed bool // a stronger wish for the pod has arrived, or the agent stops
	took   time.Duration
	result podsync.Result
	missed bool // the pod changed during the call
}

// computeEntry decides whether a turn has anything to do.
func computeEntry(t *turn) decision {
	switch {
	case t.life.State == Finished && !t.life.RuntimeOnly && !t.life.Orphan:
		// An API pod that is being deleted stays until its source has let go of it: its last status
		// is still to be reported. One that was evicted as its source let go of it is to be
		// orphaned.
		return decision{then: wait, finished: true}
	case t.life.State == Waiting && !t.first:
		return decision{then: wait, entry: journal.Entry{Decision: "wait for the pod of the same name to end"}}
	}
	return decision{}
}

// computeRemoval decides after a try to remove what is left of a pod; tries counts those that
// failed, this one included.
func computeRemoval(o outcome, tries int) decision {
	if o.err == nil {
		return decision{then: leave}
	}
	return computeFailure("remove", o, min(errorBackOff<<min(tries-1, 10), removalBackOffCap))
}

// computeObserved decides after a try to observe the pod.
func computeObserved(o outcome) decision {
	if o.err == nil {
		return decision{}
	}
	return computeFailure("observe", o, errorBackOff)
}

func computeFailure(what string, o outcome, backOff time.Duration) decision {
	if o.killed {
		return decision{then: atOnce}
	}
	return decision{then: wait, backOff: backOff, entry: journal.Entry{
		Decision: what + " failed, to be tried again", Error: o.err.Error(),
	}}
}

// admitting says whether a pod that waits is to be admitted.
type admitting int

const (
	notAsked admitting = iota // it is past that, or others are before it
	adopted                   // it runs: an earlier agent has admitted it
	asked
)

// computeAsked decides whether the pod's admission is asked for now.
func computeAsked(t *turn) (admitting, decision) {
	switch {
	case t.life.State != Waiting:
		return notAsked, decision{}
	case t.observed.Active():
		return adopted, decision{to: Syncing, entry: journal.Entry{
			Decision: "go on with the pod as it runs", Why: "the agent was started again; nothing of the pod was",
		}}
	case !t.next:
		return notAsked, decision{then: wait}
	}
	return asked, decision{}
}

// computeAdmission decides after the pod's admission was asked for.
func computeAdmission(v admission.Verdict, err error) decision {
	switch {
	case err != nil: // a stronger wish has arrived
		return decision{then: atOnce}
	case v.Later != nil:
		return decision{then: wait, entry: journal.Entry{Decision: "wait for room to be made"}}
	case !v.Admitted:
		return decision{then: atOnce, to: Terminated} // an earlier agent may have begun with it
	}
	return decision{to: Syncing}
}

// computeTermination decides how the end of a pod begins.
func computeTermination(t *turn) decision {
	switch {
	case t.life.State != Terminating || t.life.TerminationBegun:
		return decision{}
	case t.work.pod != nil && !t.started && len(t.observed.Sandboxes) == 0:
		return decision{then: atOnce, to: Terminated} // it ended before it began
	}
	return decision{terminating: true, entry: journal.Entry{
		Decision: "end the pod", Why: fmt.Sprintf("%s; grace period %d s", t.why, t.work.grace),
	}}
}

// computeNext decides after the pass of a state.
func computeNext(s pod.State, o outcome) decision {
	switch {
	case o.killed:
		return decision{then: atOnce}
	case o.err != nil:
		return decision{then: wait, backOff: errorBackOff, at: o.result.RetryAt, entry: journal.Entry{
			Decision: "pass failed, to be tried again", Why: "state " + s.String(),
			Took: o.took.Round(time.Millisecond), Error: o.err.Error(),
		}}
	case s == Syncing && o.result.Terminal:
		return decision{then: atOnce, to: Terminating, why: o.result.Why}
	case s == Terminating:
		return decision{then: atOnce, to: Terminated}
	case s == Terminated:
		return decision{then: atOnce, to: Finished}
	case o.result.Touched || o.missed:
		return decision{then: atOnce}
	}
	return decision{then: wait, at: o.result.RetryAt}
}

// delay returns after how long a worker that waits takes its next turn, and false if only a wake-up
// has it take one.
func (d decision) delay(now time.Time) (time.Duration, bool) {
	until := max(d.at.Sub(now), time.Millisecond)
	switch {
	case d.backOff == 0:
		return until, !d.at.IsZero()
	case d.at.IsZero():
		return jitter(d.backOff), true
	}
	return min(jitter(d.backOff), until), true
}

func jitter(d time.Duration) time.Duration {
	return d + time.Duration(rand.Int64N(int64(d)/2+1))
}
