// Package podworkers runs the lifecycle of each pod: one goroutine per pod UID, which moves it one
// way through Waiting, Syncing, Terminating, Terminated and Finished.
//
// Owns: the pod lifecycle (it is the only writer of pod.States), each worker's pending work, grace
// period and timer.
// Reads: the observed state of the pod, through Observer.
// Never: calls the runtime or the API server itself, queues updates: an update is merged into the
// pending work and wakes the worker.
//
//	from         on                   to
//	Waiting      admitted             Syncing
//	Waiting      rejected             Terminated
//	Waiting      kill                 Terminating
//	Syncing      kill                 Terminating
//	Syncing      terminal phase       Terminating
//	Terminating  never started        Terminated
//	Terminating  all stopped          Terminated
//	Terminated   cleaned up           Finished
//
// The worker of a finished pod that is still desired waits; once the pod is no longer desired, its
// remains are removed and the worker exits.
package podworkers

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// PodWorkers is the set of workers. Its methods are safe for concurrent use.
type PodWorkers struct {
	Config
	metrics  *metrics
	finished *pod.Inbox[pod.UID] // pods whose worker has exited
	passes   sync.WaitGroup

	mu      sync.Mutex
	ctx     context.Context     // guarded by mu; nil before Run
	workers map[pod.UID]*worker // guarded by mu
	queue   queue               // guarded by mu
}

// New returns workers that start once Run is called.
func New(cfg Config) *PodWorkers {
	return &PodWorkers{Config: cfg, metrics: newMetrics(cfg.Metrics), finished: pod.NewInbox[pod.UID](), workers: map[pod.UID]*worker{}, queue: queue{names: map[pod.FullName][]*worker{}}}
}

// TerminatingPod returns the newest desired version of a terminating pod that is not removed yet,
// and false for other pods and for pods that exist only in the runtime.
func (p *PodWorkers) TerminatingPod(uid pod.UID) (*v1.Pod, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, ok := p.workers[uid]
	if !ok || !w.isTerminating() {
		return nil, false
	}
	return w.work.pod, true
}

// TerminatingPods returns the UIDs of all pods that TerminatingPod returns.
func (p *PodWorkers) TerminatingPods() []pod.UID {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []pod.UID
	for uid, w := range p.workers {
		if w.isTerminating() {
			out = append(out, uid)
		}
	}
	return out
}

// Finished receives the pods whose worker has exited, or has nothing left to do while the pod is
// desired.
func (p *PodWorkers) Finished() *pod.Inbox[pod.UID] { return p.finished }

// Run runs the workers until ctx is done. It does not stop containers.
func (p *PodWorkers) Run(ctx context.Context) error {
	p.mu.Lock()
	p.ctx = ctx
	for _, w := range p.workers {
		p.startLocked(w)
	}
	p.mu.Unlock()
	<-ctx.Done()
	p.passes.Wait()
	return ctx.Err()
}

func (p *PodWorkers) startLocked(w *worker) {
	ctx := p.ctx
	if ctx == nil || ctx.Err() != nil {
		return
	}
	p.passes.Go(func() { w.run(ctx) })
}

// UpdatePod merges an update into the work of the pod's worker, and creates the worker if there is
// none. A status that the agent itself wrote does not wake the worker. UpdatePod never blocks and
// never fails.
func (p *PodWorkers) UpdatePod(o UpdatePodOptions) {
	uid := o.uid()
	p.mu.Lock()
	w, done := p.updateLocked(uid, &o)
	p.mu.Unlock()
	if done != nil {
		close(done)
	}
	if w != nil {
		notify(w.wake)
	}
}

func (p *PodWorkers) updateLocked(uid pod.UID, o *UpdatePodOptions) (_ *worker, done chan<- struct{}) {
	var completed chan<- struct{}
	if o.KillPodOptions != nil {
		completed = o.KillPodOptions.CompletedCh
	}
	w, ok := p.workers[uid]
	if !ok {
		if o.Pod == nil && o.UpdateType != SyncPodKill {
			return nil, completed
		}
		w = p.addLocked(uid, o)
		if grace, ok := p.Evicted(uid); ok {
			o = o.asEviction(grace)
		}
	}
	if o.UpdateType == SyncPodCreate && w.life.State >= Terminating {
		p.metrics.restart(w)
		w.work.again = true // the new pod starts once this worker has exited (Finished)
		return nil, completed
	}
	before, echo := w.life, isEcho(w.work, o)
	w.life = nextLifecycle(w.life, o)
	var shortened bool
	w.work, shortened = mergeWork(w.work, o, w.life)
	if w.life.State >= Terminated {
		// All containers have terminated: complete the waiters.
		done, w.work.completions = completed, nil
	} else if w.life.State < Terminating {
		done = completed
	}
	p.States.Set(uid, w.life)
	if before.State < Terminating && w.life.State >= Terminating {
		w.why = whyEnd(o)
	}
	if (shortened || (before.State < Terminating && w.life.State >= Terminating)) && w.interrupt != nil {
		w.interrupt()
	}
	if echo && w.life == before {
		return nil, done
	}
	return w, done
}

func (p *PodWorkers) addLocked(uid pod.UID, o *UpdatePodOptions) *worker {
	w := &worker{workers: p, uid: uid, wake: make(chan struct{}, 1), arrived: time.Now()}
	p.metrics.found(o)
	if o.Pod != nil {
		w.name, w.static = pod.FullNameOf(o.Pod), pod.IsStatic(o.Pod)
	}
	p.workers[uid] = w
	if o.Pod != nil {
		p.queue.waiting = append(p.queue.waiting, w)
	}
	if w.static {
		p.queue.names[w.name] = append(p.queue.names[w.name], w)
	}
	p.startLocked(w)
	return w
}

// remove removes a worker that exits, wakes the next worker of its pod's name, and completes its
// waiters.
func (p *PodWorkers) remove(w *worker) {
	p.Admitter.Forget(w.uid) // before another worker with this UID can exist
	p.mu.Lock()
	delete(p.workers, w.uid)
	p.States.Forget(w.uid)
	done := w.work.completions
	next := p.queue.remove(w)
	p.mu.Unlock()
	for _, c := range done {
		close(c)
	}
	if next != nil {
		notify(next.wake)
	}
	p.finished.Put(w.uid)
}

// SyncKnownPods terminates the workers of all pods that are not in desired. It latches that every
// desired pod is known: from then on, an unknown UID is a removed pod.
func (p *PodWorkers) SyncKnownPods(desired map[pod.UID]*v1.Pod) {
	var wake []*worker
	known := map[pod.UID]bool{}
	for uid := range desired {
		known[uid] = true
	}
	p.mu.Lock()
	for uid, w := range p.workers {
		known[uid] = true
		if desired[uid] == nil && p.orphanLocked(w) {
			wake = append(wake, w)
		}
	}
	p.States.SetKnown()
	p.mu.Unlock()
	p.Admitter.Retain(known)
	for _, w := range wake {
		notify(w.wake)
	}
}

// Orphan terminates the pod's worker, if there is one: no source has the pod.
func (p *PodWorkers) Orphan(uid pod.UID) {
	p.mu.Lock()
	w := p.workers[uid]
	isNew := w != nil && p.orphanLocked(w)
	p.mu.Unlock()
	if isNew {
		notify(w.wake)
	}
}

// orphanLocked marks the worker's pod as removed from all sources, and reports whether that is new.
func (p *PodWorkers) orphanLocked(w *worker) (isNew bool) {
	if w.life.Orphan {
		return false
	}
	before := w.life.State
	w.life = orphaned(w.life)
	if before < Terminating {
		w.why = whyUnwanted(w.work.pod)
		if w.interrupt != nil {
			w.interrupt()
		}
	}
	w.work.grace = computeGrace(w.work, nil)
	p.States.Set(w.uid, w.life)
	return true
}

// KillPod evicts the pod; status is applied to its final status. done is closed when none of its
// containers is running. It never blocks.
func (p *PodWorkers) KillPod(victim *v1.Pod, status func(*v1.PodStatus), done chan<- struct{}) {
	p.UpdatePod(UpdatePodOptions{
		UpdateType: SyncPodKill, Pod: victim,
		KillPodOptions: &KillPodOptions{Evict: Evicted, PodStatusFunc: status, CompletedCh: done},
	})
}

// Has reports whether the pod has a worker.
func (p *PodWorkers) Has(uid pod.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.workers[uid] != nil
}

// WakePod makes the pod's worker, if there is one, run another iteration.
func (p *PodWorkers) WakePod(uid pod.UID) {
	p.mu.Lock()
	w := p.workers[uid]
	p.mu.Unlock()
	if w != nil {
		notify(w.wake)
	}
}

// WakeAll makes every worker run another iteration, whatever its state and timer.
func (p *PodWorkers) WakeAll() {
	p.mu.Lock()
	workers := slices.Collect(maps.Values(p.workers))
	p.mu.Unlock()
	for _, w := range workers {
		notify(w.wake)
	}
}

// All returns the pods that have a worker.
func (p *PodWorkers) All() []pod.UID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.workers))
}

// Len returns the number of workers.
func (p *PodWorkers) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.workers)
}

// admitted removes the worker from the admission queue and wakes the next one.
func (p *PodWorkers) admitted(w *worker) {
	p.mu.Lock()
	next := p.queue.admitted(w)
	p.mu.Unlock()
	if next != nil {
		notify(next.wake)
	}
}

func (p *PodWorkers) isNext(w *worker) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.next() == w
}

func (p *PodWorkers) begin(w *worker, cancel context.CancelFunc) *iteration {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.interrupt = cancel
	return &iteration{worker: w, life: w.life, work: w.work, started: w.started, why: w.why, isFirst: p.queue.isFirst(w)}
}

func (p *PodWorkers) end(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.interrupt = nil
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

// notify sends to a channel of capacity 1 without blocking.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
