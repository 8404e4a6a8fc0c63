package podworkers

import (
	"cmp"
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/record/span"
	"berth/internal/sync/podsync"
)

// live is a worker's goroutine: it waits for a wake-up or the timer, and iterates until there is
// nothing to do.
func (p *PodWorkers) live(stop context.Context, w *worker) {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-stop.Done():
			return
		case <-w.wake:
		case <-w.capacity:
		case <-timer.C:
		}
		timer.Stop()
		w.capacity = nil
		d := decision{then: atOnce}
		for d.then == atOnce && stop.Err() == nil {
			d = p.turn(stop, w)
		}
		switch {
		case stop.Err() != nil:
			return
		case d.then == leave:
			p.leave(w)
			return
		}
		if delay, timed := d.delay(time.Now()); timed {
			timer.Reset(delay)
		}
	}
}

// turn runs one iteration: its steps in order, until one decides how the worker continues. stop is
// cancelled when the agent stops; kill also when the pod's pass is interrupted.
func (p *PodWorkers) turn(stop context.Context, w *worker) (d decision) {
	kill, cancel := context.WithCancel(stop)
	defer cancel()
	t := p.begin(w, cancel)
	defer p.end(w)
	for _, step := range []func(context.Context, *turn) decision{p.enter, p.remove, p.observe, p.admit, p.terminate, p.run} {
		d = step(kill, t)
		if p.apply(t, d); d.then != goOn {
			break
		}
	}
	return d
}

// enter ends the iteration if there is nothing to do.
func (p *PodWorkers) enter(_ context.Context, t *turn) decision {
	if t.life.State != Waiting {
		p.letNextPass(t.worker)
	}
	return computeEntry(t)
}

// letNextPass removes the worker from the admission queue and wakes the next one.
func (p *PodWorkers) letNextPass(w *worker) {
	p.mu.Lock()
	next := p.queue.admitted(w)
	p.mu.Unlock()
	if next != nil {
		next.poke()
	}
}

// remove removes the rest of a finished pod.
func (p *PodWorkers) remove(kill context.Context, t *turn) decision {
	if t.life.State != Finished {
		return decision{}
	}
	w := t.worker
	err := p.Syncer.RemovePod(kill, podsync.Request{UID: w.uid, Pod: t.work.pod, Observed: t.work.running, Again: t.work.again})
	w.removals++
	return computeRemoval(outcome{err: err, killed: kill.Err() != nil}, w.removals)
}

// observe reads a state that is newer than the pod's last pass.
func (p *PodWorkers) observe(kill context.Context, t *turn) decision {
	var err error
	t.observed, err = p.Observer.Observe(kill, t.worker.uid, t.worker.after)
	t.next = p.isNext(t.worker)
	if of := t.work.pod; err != nil && kill.Err() == nil && of != nil {
		p.Unobserved(of, err)
	}
	return computeObserved(outcome{err: err, killed: kill.Err() != nil})
}

func (p *PodWorkers) isNext(w *worker) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.next() == w
}

// admit requests the admission of a waiting pod.
func (p *PodWorkers) admit(kill context.Context, t *turn) decision {
	ask, d := computeAsked(t)
	switch ask {
	case adopted:
		p.Admitter.Adopt(t.work.pod)
	case asked:
		verdict, err := p.Admitter.Admit(kill, t.work.pod)
		for _, v := range verdict.Victims {
			p.KillPod(v.Pod, v.Status, v.Done)
		}
		d = computeAdmission(verdict, err)
		t.worker.capacity = verdict.Later // the pod stays first in the queue
		t.worker.refused = d.to == Terminated
	}
	return d
}

// terminate begins the termination of a pod.
func (p *PodWorkers) terminate(_ context.Context, t *turn) decision { return computeTermination(t) }

// run runs the pass of the pod's state.
func (p *PodWorkers) run(kill context.Context, t *turn) decision {
	w := t.worker
	release := func() (missed bool) { return false }
	if t.life.State != Terminating { // a terminating pass observes changes itself
		release = p.Observer.Hold(w.uid)
	}
	began := time.Now()
	o := p.pass(kill, t)
	o.took, o.killed = time.Since(began), kill.Err() != nil
	p.passed(t, o.took)
	o.missed = release()
	w.after = p.Observer.BeginReading()
	return computeNext(t.life.State, o)
}

// pass runs the pass of the pod's state in its own goroutine. The worker forwards wake-ups to the
// pass, and is woken again for those that the pass did not handle.
func (p *PodWorkers) pass(kill context.Context, t *turn) outcome {
	w, changed, done := t.worker, make(chan struct{}, 1), make(chan outcome, 1)
	r := podsync.Request{
		UID: w.uid, Pod: p.allocated(t), Observed: t.observed, Grace: time.Duration(t.work.grace) * time.Second,
		StatusFunc: t.work.statusFunc, Evicted: t.life.Evicted, Refused: w.refused, Changed: changed,
	}
	go func() {
		var o outcome
		kill, ended := p.trace(kill, t)
		defer func() { ended(o.err) }()
		switch t.life.State {
		case Syncing:
			o.result, o.err = p.Syncer.SyncPod(kill, r)
		case Terminating:
			o.err = p.Syncer.SyncTerminatingPod(kill, r)
		case Terminated:
			o.err = p.Syncer.SyncTerminatedPod(kill, r)
		}
		done <- o
	}()
	woken := false
	for {
		select {
		case <-w.wake:
			woken = true
			notify(changed)
		case o := <-done:
			// SyncPod only refreshes volumes on a wake-up, and leaves the rest to the next pass.
			if len(changed) > 0 || woken && t.life.State == Syncing {
				w.poke()
			}
			return o
		}
	}
}

// passNames are the kubelet's span names of passes.
var passNames = map[pod.State]string{Syncing: "syncPod", Terminating: "syncTerminatingPod", Terminated: "syncTerminatedPod"}

// trace starts the span of a pass.
func (p *PodWorkers) trace(ctx context.Context, t *turn) (context.Context, func(error)) {
	if p.Tracer == nil {
		return ctx, func(error) {}
	}
	s := t.subject()
	return p.Tracer.Begin(ctx, passNames[t.life.State], span.Attribute{Key: "k8s.pod.uid", Value: string(s.UID)},
		span.Attribute{Key: "k8s.pod.name", Value: s.Name}, span.Attribute{Key: "k8s.namespace.name", Value: s.Namespace})
}

// notify sends to a channel of capacity 1 without blocking.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// allocated returns the pod with the resources that its pass applies.
func (p *PodWorkers) allocated(t *turn) *v1.Pod {
	switch {
	case t.work.pod == nil:
		return nil
	case t.life.State == Syncing:
		return p.Resizer.Resize(t.work.pod)
	}
	return p.Resizer.Allocated(t.work.pod)
}

// passed updates the metrics of passes.
func (p *PodWorkers) passed(t *turn, took time.Duration) {
	operation := "sync"
	switch {
	case t.life.State == Terminating:
		operation = "terminating"
	case t.life.State == Terminated:
		operation = "terminated"
	case !t.started:
		operation = "create"
		p.metrics.startDuration.Observe((time.Since(t.worker.arrived) - took).Seconds())
	}
	p.metrics.duration.WithLabelValues(operation).Observe(took.Seconds())
}

func (p *PodWorkers) begin(w *worker, cancel context.CancelFunc) *turn {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.interrupt = cancel
	return &turn{worker: w, life: w.life, work: w.work, started: w.started, why: w.why, first: p.queue.isFirst(w)}
}

func (p *PodWorkers) end(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.interrupt = nil
}

// apply executes a decision. Only apply writes the worker's entries to the pod's journal.
func (p *PodWorkers) apply(t *turn, d decision) {
	w := t.worker
	for _, c := range p.advance(w, d) {
		close(c)
	}
	t.life.State = max(t.life.State, d.to)
	switch d.to {
	case Syncing:
		p.letNextPass(w)
	case Terminated:
		p.Resizer.RetryPending()
	}
	if d.finished {
		p.finished.Put(w.uid)
	}
	if d.entry.Decision != "" {
		d.entry.Subject, d.entry.Component = t.subject(), "worker"
		p.Journal.Record(d.entry)
	}
}

// advance moves the lifecycle forward, never back. It returns the completion channels to close if
// all containers have terminated.
func (p *PodWorkers) advance(w *worker, d decision) (done []chan<- struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := w.life
	w.life.TerminationBegun = w.life.TerminationBegun || d.terminating
	if w.life.State < d.to {
		w.life.State = d.to
		switch d.to {
		case Syncing:
			w.started = true
		case Terminating:
			w.work.grace, w.why = computeGrace(w.work, nil), cmp.Or(d.why, "its containers have ended for good")
		default:
			done, w.work.completions = w.work.completions, nil
		}
	}
	if w.life != before {
		p.States.Set(w.uid, w.life)
	}
	return done
}

func (t *turn) subject() journal.Subject {
	s := journal.Subject{UID: t.worker.uid}
	switch {
	case t.work.pod != nil:
		s.Namespace, s.Name = t.work.pod.Namespace, t.work.pod.Name
	case t.work.running != nil:
		s.Namespace, s.Name = t.work.running.Namespace, t.work.running.Name
	}
	return s
}
