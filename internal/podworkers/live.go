package podworkers

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/journal"
	"berth/internal/pod"
	"berth/internal/podsync"
)

// pass is what one turn of a worker works on: a copy of the worker's state.
type pass struct {
	life    pod.Lifecycle
	work    work
	started bool
	why     string
	first   bool // may start: first of its name
}

// live is a worker's goroutine: wait for a wake-up or the timer, observe, do one pass, compute state and timer.
func (p *PodWorkers) live(ctx context.Context, w *worker) {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	var after pod.Reading
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-w.room:
		case <-timer.C:
		}
		timer.Stop()
		w.room = nil
		for {
			delay, leave := p.turn(ctx, w, &after)
			if ctx.Err() != nil {
				return
			}
			if leave {
				p.leave(w)
				return
			}
			if delay == 0 {
				continue
			}
			if delay > 0 {
				timer.Reset(delay)
			}
			break
		}
	}
}

// allotted returns the pod of the pass with the resources that it is to have.
func (p *PodWorkers) allotted(t pass) *v1.Pod {
	switch {
	case t.work.pod == nil:
		return nil
	case t.life.State == Syncing:
		return p.Resizer.Resize(t.work.pod)
	}
	return p.Resizer.Allotted(t.work.pod)
}

// forever is the delay of a worker that waits for a wake-up only.
const forever = -1

// turn does one pass and returns how long to wait before the next: 0 for at once, forever for until something happens.
func (p *PodWorkers) turn(ctx context.Context, w *worker, after *pod.Reading) (delay time.Duration, leave bool) {
	passCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := p.begin(w, cancel)
	defer p.end(w)
	if t.life.State != Waiting {
		p.dropTicket(w)
	}

	switch {
	case t.life.State == Finished:
		// An API pod that is being deleted stays until its source has let go of it: its last status is still to be reported.
		if !t.life.RuntimeOnly && !t.life.Orphan {
			p.finished.Put(w.uid) // one that was evicted as its source let go of it is to be orphaned
			return forever, false
		}
		err := p.Syncer.RemovePod(passCtx, podsync.Request{
			UID: w.uid, Pod: t.work.pod, Observed: t.work.running, Again: t.work.again,
		})
		switch {
		case err == nil:
			return 0, true
		case passCtx.Err() != nil:
			return 0, false
		}
		p.record(w, t, "remove", err)
		w.removals++
		return jitter(min(errorBackOff<<min(w.removals-1, 10), removalBackOffCap)), false
	case t.life.State == Waiting && !t.first:
		p.Journal.Record(journal.Entry{Subject: subject(w, t), Component: "worker", Decision: "wait for the pod of the same name to end"})
		return forever, false
	}

	observed, err := p.Observer.Observe(passCtx, w.uid, *after)
	if err != nil {
		if passCtx.Err() != nil {
			return 0, false
		}
		p.record(w, t, "observe", err)
		return jitter(errorBackOff), false
	}
	if t.life.State == Waiting {
		// What runs already was admitted by an earlier run of the agent.
		if observed.Active() {
			p.Admitter.Adopt(t.work.pod)
		} else {
			if !p.onTurn(w) {
				return forever, false // woken when it is
			}
			verdict, err := p.Admitter.Admit(passCtx, t.work.pod)
			switch {
			case err != nil:
				return 0, false // a stronger wish has arrived
			case verdict.Later != nil:
				w.room = verdict.Later // it keeps its place
				p.Journal.Record(journal.Entry{Subject: subject(w, t), Component: "worker", Decision: "wait for room to be made"})
				return forever, false
			case !verdict.Admitted:
				w.refused = true
				p.advance(w, Terminated) // an earlier agent may have begun with it
				return 0, false
			}
		}
		p.set(w, func(l *pod.Lifecycle) { l.State = max(l.State, Syncing) })
		t.life.State = Syncing
		p.dropTicket(w)
	}
	if t.life.State == Terminating && !t.life.TerminationBegun {
		if t.work.pod != nil && !t.started && len(observed.Sandboxes) == 0 {
			p.advance(w, Terminated) // it ended before it began
			return 0, false
		}
		p.set(w, func(l *pod.Lifecycle) { l.TerminationBegun = true })
		p.Journal.Record(journal.Entry{
			Subject: subject(w, t), Component: "worker", Decision: "end the pod", Why: fmt.Sprintf("%s; grace period %d s", t.why, t.work.grace),
		})
	}

	r := podsync.Request{
		UID: w.uid, Pod: p.allotted(t), Observed: observed, Grace: time.Duration(t.work.grace) * time.Second,
		StatusFunc: t.work.statusFunc, Evicted: t.life.Evicted, Refused: w.refused, Wake: w.wake,
	}
	release := func() (missed bool) { return false }
	if t.life.State != Terminating { // which looks at what changes while it lasts
		release = p.Observer.Hold(w.uid)
	}
	var result podsync.Result
	began := time.Now()
	switch t.life.State {
	case Syncing:
		if result, err = p.Syncer.SyncPod(passCtx, r); result.Woken {
			w.poke()
		}
	case Terminating:
		err = p.Syncer.SyncTerminatingPod(passCtx, r)
	case Terminated:
		err = p.Syncer.SyncTerminatedPod(passCtx, r)
	}
	p.passed(w, t, time.Since(began))
	missed := release()
	*after = p.Observer.Mark()
	if ctx.Err() != nil {
		return 0, false // the agent leaves
	}
	if passCtx.Err() != nil {
		return 0, false // a stronger wish has arrived
	}
	if err != nil {
		p.Journal.Record(journal.Entry{
			Subject: subject(w, t), Component: "worker", Decision: "pass failed, to be tried again", Why: "state " + t.life.State.String(),
			Took: time.Since(began).Round(time.Millisecond), Error: err.Error(),
		})
		return nextDelay(result.RetryAt, time.Now()), false
	}
	switch {
	case t.life.State == Syncing && result.Terminal:
		p.advance(w, Terminating)
		return 0, false
	case t.life.State == Terminating:
		p.advance(w, Terminated)
		return 0, false
	case t.life.State == Terminated:
		p.advance(w, Finished)
		return 0, false
	case result.Touched || missed:
		return 0, false
	case !result.RetryAt.IsZero():
		return max(time.Until(result.RetryAt), time.Millisecond), false
	}
	return forever, false
}

// passed counts the pass.
func (p *PodWorkers) passed(w *worker, t pass, took time.Duration) {
	operation := "sync"
	switch {
	case t.life.State == Terminating:
		operation = "terminating"
	case t.life.State == Terminated:
		operation = "terminated"
	case !t.started:
		operation = "create"
		p.metrics.startDuration.Observe((time.Since(w.arrived) - took).Seconds())
	}
	p.metrics.duration.WithLabelValues(operation).Observe(took.Seconds())
}

func (p *PodWorkers) begin(w *worker, cancel context.CancelFunc) pass {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.interrupt = cancel
	return pass{life: w.life, work: w.work, started: w.started, why: w.why, first: p.firstOfNameLocked(w)}
}

func (p *PodWorkers) end(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.interrupt = nil
}

func (p *PodWorkers) set(w *worker, change func(*pod.Lifecycle)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&w.life)
	w.started = w.started || w.life.State == Syncing
	p.States.Set(w.uid, w.life)
}

// advance moves the lifecycle on, never back, and tells who waits for the end of the containers.
func (p *PodWorkers) advance(w *worker, to pod.State) {
	p.mu.Lock()
	var done []chan<- struct{}
	if w.life.State < to {
		w.life.State = to
		if to == Terminating {
			w.work.grace, w.why = computeGrace(w.work, nil), "its containers have ended for good"
		}
		if to >= Terminated {
			done, w.work.completions = w.work.completions, nil
		}
		p.States.Set(w.uid, w.life)
	}
	p.mu.Unlock()
	for _, c := range done {
		close(c)
	}
	if to == Terminated {
		p.Resizer.RoomMade()
	}
}

func (p *PodWorkers) record(w *worker, t pass, what string, err error) {
	p.Journal.Record(journal.Entry{Subject: subject(w, t), Component: "worker", Decision: what + " failed, to be tried again", Error: err.Error()})
}

func subject(w *worker, t pass) journal.Subject {
	s := journal.Subject{UID: w.uid}
	switch {
	case t.work.pod != nil:
		s.Namespace, s.Name = t.work.pod.Namespace, t.work.pod.Name
	case t.work.running != nil:
		s.Namespace, s.Name = t.work.running.Namespace, t.work.running.Name
	}
	return s
}
