package podworkers

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/record/span"
	"berth/internal/sync/podsync"
)

type worker struct {
	workers *PodWorkers
	uid     pod.UID
	name    pod.FullName
	static  bool
	wake    chan struct{} // capacity 1
	// arrived is the time of the pod's first update.
	arrived time.Time

	// Owned by the worker's goroutine:
	after    pod.Reading     // readings up to it are older than the last pass
	capacity <-chan struct{} // closed when a pod waiting for capacity is to be retried
	rejected bool            // the pod was not admitted
	// removals counts the attempts to remove the rest of the terminated pod.
	removals int

	// Guarded by PodWorkers.mu:
	life      pod.Lifecycle
	work      work
	started   bool               // a pass over the running pod began
	why       string             // reason of the termination
	interrupt context.CancelFunc // cancels the running pass
}

// isTerminating requires PodWorkers.mu.
func (w *worker) isTerminating() bool {
	return w.work.pod != nil && (w.life.State == Terminating || w.life.State == Terminated)
}

// run waits for a wake-up or the timer, and iterates until there is nothing to do.
func (w *worker) run(stop context.Context) {
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
		d := decision{then: requeue}
		for d.then == requeue && stop.Err() == nil {
			d = w.iterate(stop)
		}
		switch {
		case stop.Err() != nil:
			return
		case d.then == done:
			w.workers.remove(w)
			return
		}
		if delay, timed := d.delay(time.Now()); timed {
			timer.Reset(delay)
		}
	}
}

// iterate runs one iteration: its steps in order, until one decides how the worker continues. stop
// is cancelled when the agent stops; kill also when the pod's pass is interrupted.
func (w *worker) iterate(stop context.Context) (d decision) {
	kill, cancel := context.WithCancel(stop)
	defer cancel()
	it := w.workers.begin(w, cancel)
	defer w.workers.end(w)
	for _, step := range []func(context.Context, *iteration) decision{w.start, w.remove, w.observe, w.admit, w.terminate, w.sync} {
		d = step(kill, it)
		if w.apply(it, d); d.then != next {
			break
		}
	}
	return d
}

// start ends the iteration if there is nothing to do.
func (w *worker) start(_ context.Context, it *iteration) decision {
	if it.life.State != Waiting {
		w.workers.admitted(w)
	}
	return computeEntry(it)
}

func (w *worker) remove(kill context.Context, it *iteration) decision {
	if it.life.State != Finished {
		return decision{}
	}
	err := w.workers.Syncer.RemovePod(kill, podsync.Request{UID: w.uid, Pod: it.work.pod, Observed: it.work.running, Again: it.work.again})
	w.removals++
	return computeRemoval(outcome{err: err, killed: kill.Err() != nil}, w.removals)
}

// observe reads a state that is newer than the pod's last pass.
func (w *worker) observe(kill context.Context, it *iteration) decision {
	var err error
	it.observed, err = w.workers.Observer.Observe(kill, w.uid, w.after)
	it.isNext = w.workers.isNext(w)
	if of := it.work.pod; err != nil && kill.Err() == nil && of != nil {
		w.workers.Unobserved(of, err)
	}
	return computeObserved(outcome{err: err, killed: kill.Err() != nil})
}

func (w *worker) admit(kill context.Context, it *iteration) decision {
	action, d := computeAdmitAction(it)
	switch action {
	case adopt:
		w.workers.Admitter.Adopt(it.work.pod)
	case requestAdmission:
		verdict, err := w.workers.Admitter.Admit(kill, it.work.pod)
		for _, v := range verdict.Victims {
			w.workers.KillPod(v.Pod, v.Status, v.Done)
		}
		d = computeAdmission(verdict, err)
		w.capacity = verdict.Later // the pod stays first in the queue
		w.rejected = d.to == Terminated
	}
	return d
}

func (w *worker) terminate(_ context.Context, it *iteration) decision { return computeTermination(it) }

func (w *worker) sync(kill context.Context, it *iteration) decision {
	release := func() (missed bool) { return false }
	if it.life.State != Terminating { // a terminating pass observes changes itself
		release = w.workers.Observer.Hold(w.uid)
	}
	began := time.Now()
	o := w.pass(kill, it)
	o.took, o.killed = time.Since(began), kill.Err() != nil
	w.recordDuration(it, o.took)
	o.missed = release()
	w.after = w.workers.Observer.BeginReading()
	return computeNext(it.life.State, o)
}

// pass runs the pass of the pod's state in its own goroutine. The worker forwards wake-ups to the
// pass, and is woken again for those that the pass did not handle.
func (w *worker) pass(kill context.Context, it *iteration) outcome {
	changed, result := make(chan struct{}, 1), make(chan outcome, 1)
	r := podsync.Request{
		UID: w.uid, Pod: w.allocated(it), Observed: it.observed, Grace: time.Duration(it.work.grace) * time.Second,
		StatusFunc: it.work.statusFunc, Evicted: it.life.Evicted, Refused: w.rejected, Changed: changed,
	}
	go func() {
		var o outcome
		kill, ended := w.trace(kill, it)
		defer func() { ended(o.err) }()
		switch it.life.State {
		case Syncing:
			o.result, o.err = w.workers.Syncer.SyncPod(kill, r)
		case Terminating:
			o.err = w.workers.Syncer.SyncTerminatingPod(kill, r)
		case Terminated:
			o.err = w.workers.Syncer.SyncTerminatedPod(kill, r)
		}
		result <- o
	}()
	woken := false
	for {
		select {
		case <-w.wake:
			woken = true
			notify(changed)
		case o := <-result:
			// SyncPod only refreshes volumes on a wake-up, and leaves the rest to the next pass.
			if len(changed) > 0 || woken && it.life.State == Syncing {
				notify(w.wake)
			}
			return o
		}
	}
}

// passNames are the kubelet's span names of passes.
var passNames = map[pod.State]string{Syncing: "syncPod", Terminating: "syncTerminatingPod", Terminated: "syncTerminatedPod"}

func (w *worker) trace(ctx context.Context, it *iteration) (context.Context, func(error)) {
	s := it.subject()
	return w.workers.Tracer.Begin(ctx, passNames[it.life.State], span.Attribute{Key: "k8s.pod.uid", Value: string(s.UID)},
		span.Attribute{Key: "k8s.pod.name", Value: s.Name}, span.Attribute{Key: "k8s.namespace.name", Value: s.Namespace})
}

// allocated returns the pod with the resources that its pass applies.
func (w *worker) allocated(it *iteration) *v1.Pod {
	switch {
	case it.work.pod == nil:
		return nil
	case it.life.State == Syncing:
		return w.workers.Resizer.Resize(it.work.pod)
	}
	return w.workers.Resizer.Allocated(it.work.pod)
}

// recordDuration updates the metrics of passes.
func (w *worker) recordDuration(it *iteration, took time.Duration) {
	operation := "sync"
	switch {
	case it.life.State == Terminating:
		operation = "terminating"
	case it.life.State == Terminated:
		operation = "terminated"
	case !it.started:
		operation = "create"
		w.workers.metrics.startDuration.Observe((time.Since(w.arrived) - took).Seconds())
	}
	w.workers.metrics.duration.WithLabelValues(operation).Observe(took.Seconds())
}

// apply executes a decision. Only apply writes the worker's entries to the pod's journal.
func (w *worker) apply(it *iteration, d decision) {
	for _, c := range w.workers.advance(w, d) {
		close(c)
	}
	it.life.State = max(it.life.State, d.to)
	switch d.to {
	case Syncing:
		w.workers.admitted(w)
	case Terminated:
		w.workers.Resizer.RetryPending()
	}
	if d.finished {
		w.workers.finished.Put(w.uid)
	}
	if d.entry.Decision != "" {
		d.entry.Subject, d.entry.Component = it.subject(), "worker"
		w.workers.Journal.Record(d.entry)
	}
}

func (it *iteration) subject() journal.Subject {
	s := journal.Subject{UID: it.worker.uid}
	switch {
	case it.work.pod != nil:
		s.Namespace, s.Name = it.work.pod.Namespace, it.work.pod.Name
	case it.work.running != nil:
		s.Namespace, s.Name = it.work.running.Namespace, it.work.running.Name
	}
	return s
}
