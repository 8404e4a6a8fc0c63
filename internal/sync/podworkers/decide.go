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

// iteration is the input of one iteration of a worker: a copy of the worker's state, and the
// observed state of the pod.
type iteration struct {
	worker   *worker
	life     pod.Lifecycle
	work     work
	started  bool
	why      string
	isFirst  bool // first of its name: it may start
	isNext   bool // next in the admission queue; set with observed
	observed *pod.Status
}

// then is how a worker continues after a decision.
type then int

const (
	next    then = iota // with the next step of the iteration
	requeue             // with another iteration, immediately
	wait                // with another iteration, on a wake-up or when the timer fires
	done                // the worker exits
)

// decision is the outcome of one step of an iteration. It is data: worker.apply executes it.
type decision struct {
	then then
	// to is the pod's next state; a pod never moves back.
	to pod.State
	// terminating: the termination of the containers begins.
	terminating bool
	// why is the reason of the termination in the journal, if it is not that the containers exited.
	why string
	// finished: nothing is left to do while the pod's source has the pod.
	finished bool
	// at is the time of the next iteration without a wake-up; zero: none. backOff is the maximum
	// time until then, plus jitter; zero: none.
	at      time.Time
	backOff time.Duration
	// entry is written to the pod's journal unless it is empty.
	entry journal.Entry
}

type outcome struct {
	err    error
	killed bool // the pass was interrupted, or the agent stops
	took   time.Duration
	result podsync.Result
	missed bool // the pod changed during the call
}

// computeEntry decides whether an iteration has anything to do.
func computeEntry(it *iteration) decision {
	switch {
	case it.life.State == Finished && !it.life.RuntimeOnly && !it.life.Orphan:
		// A deleted API pod stays until its source has removed it: its last status must still be
		// reported. A pod that was evicted when its source removed it is orphaned later.
		return decision{then: wait, finished: true}
	case it.life.State == Waiting && !it.isFirst:
		return decision{then: wait, entry: journal.Entry{Decision: "wait for the pod of the same name to end"}}
	}
	return decision{}
}

// computeRemoval decides after an attempt to remove the rest of a pod; tries counts the failed
// attempts including this one.
func computeRemoval(o outcome, tries int) decision {
	if o.err == nil {
		return decision{then: done}
	}
	return computeFailure("remove", o, min(errorBackOff<<min(tries-1, 10), removalBackOffCap))
}

func computeObserved(o outcome) decision {
	if o.err == nil {
		return decision{}
	}
	return computeFailure("observe", o, errorBackOff)
}

func computeFailure(what string, o outcome, backOff time.Duration) decision {
	if o.killed {
		return decision{then: requeue}
	}
	return decision{then: wait, backOff: backOff, entry: journal.Entry{
		Decision: what + " failed, to be tried again", Error: o.err.Error(),
	}}
}

// admitAction is how a pod is admitted.
type admitAction int

const (
	skipAdmission admitAction = iota // it is past admission, or other pods are first
	adopt                            // it runs: an earlier agent has admitted it
	requestAdmission
)

// computeAdmitAction decides whether to request the pod's admission now.
func computeAdmitAction(it *iteration) (admitAction, decision) {
	switch {
	case it.life.State != Waiting:
		return skipAdmission, decision{}
	case it.observed.Active():
		return adopt, decision{to: Syncing, entry: journal.Entry{
			Decision: "go on with the pod as it runs", Why: "the agent was started again; nothing of the pod was",
		}}
	case !it.isNext:
		return skipAdmission, decision{then: wait}
	}
	return requestAdmission, decision{}
}

func computeAdmission(v admission.Verdict, err error) decision {
	switch {
	case err != nil: // interrupted
		return decision{then: requeue}
	case v.Later != nil:
		return decision{then: wait, entry: journal.Entry{Decision: "wait for room to be made"}}
	case !v.Admitted:
		return decision{then: requeue, to: Terminated} // an earlier agent may have begun to start it
	}
	return decision{to: Syncing}
}

// computeTermination decides how the termination of a pod begins.
func computeTermination(it *iteration) decision {
	switch {
	case it.life.State != Terminating || it.life.TerminationBegun:
		return decision{}
	case it.work.pod != nil && !it.started && len(it.observed.Sandboxes) == 0:
		return decision{then: requeue, to: Terminated} // it never started
	}
	return decision{terminating: true, entry: journal.Entry{
		Decision: "end the pod", Why: fmt.Sprintf("%s; grace period %d s", it.why, it.work.grace),
	}}
}

func computeNext(s pod.State, o outcome) decision {
	switch {
	case o.killed:
		return decision{then: requeue}
	case o.err != nil:
		return decision{then: wait, backOff: errorBackOff, at: o.result.RetryAt, entry: journal.Entry{
			Decision: "pass failed, to be tried again", Why: "state " + s.String(),
			Took: o.took.Round(time.Millisecond), Error: o.err.Error(),
		}}
	case s == Syncing && o.result.Terminal:
		return decision{then: requeue, to: Terminating, why: o.result.Why}
	case s == Terminating:
		return decision{then: requeue, to: Terminated}
	case s == Terminated:
		return decision{then: requeue, to: Finished}
	case o.result.Touched || o.missed:
		return decision{then: requeue}
	}
	return decision{then: wait, at: o.result.RetryAt}
}

// delay returns the time until the next iteration of a waiting worker, and false if only a wake-up
// starts one.
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
