package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/record/journal"
)

// API is what the patcher needs of the API server. Errors are those of apimachinery
// (apierrors.IsNotFound and so on).
type API interface {
	GetPod(ctx context.Context, namespace, name string) (*v1.Pod, error)
	PatchPodStatus(ctx context.Context, namespace, name string, patch []byte) error
	// DeletePod deletes the pod at once if it still has the UID.
	DeletePod(ctx context.Context, namespace, name string, uid pod.UID) error
}

// PatcherConfig is what a Patcher needs.
type PatcherConfig struct {
	API     API
	Manager *Manager
	Pods    *pod.Manager
	States  *pod.States
	// BeforePatch keeps on disk what an agent knows of static pods: what it tells of them, the next
	// agent must not tell otherwise.
	BeforePatch func(context.Context)
	// Metrics measure how long after a change of a status the API server has it; nil: nothing does.
	Metrics *Metrics
	// Journal is where it says that the API server was told; nil: nowhere.
	Journal *journal.Journal
	Log     *slog.Logger
}

// Patcher tells the API server the newest status of each pod, at once and one write per pod at a
// time; what changes meanwhile is in the next write. A static pod's status goes to its mirror. An
// API pod that is being deleted is deleted for good once it has ended and said so.
type Patcher struct {
	PatcherConfig
	retry   *pod.Inbox[pod.UID]
	flushes chan flush

	mu     sync.Mutex
	writes map[pod.UID]*write // guarded by mu; under way
}

// write is one pod's writing goroutine.
type write struct {
	again bool          // guarded by Patcher.mu; something changed since it read the status
	since time.Time     // guarded by Patcher.mu; when what is not told yet began to change
	next  time.Time     // guarded by Patcher.mu; the same of what again is about
	done  chan struct{} // guarded by Patcher.mu; closed when the writer leaves, or a try has failed
}

// flush asks Run to write statuses, and for what is closed when that was tried.
type flush struct {
	uids  []pod.UID
	begun chan []<-chan struct{} // capacity 1
}

// parallelWrites bounds the writes under way.
const parallelWrites = 16

// writeRetry spaces the tries of a write that failed.
var writeRetry = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Cap: 10 * time.Second, Steps: math.MaxInt}

// NewPatcher returns a patcher.
func NewPatcher(cfg PatcherConfig) *Patcher {
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(nil)
	}
	return &Patcher{PatcherConfig: cfg, retry: pod.NewInbox[pod.UID](), flushes: make(chan flush), writes: map[pod.UID]*write{}}
}

// Recheck lets the patcher compare a pod's status with the API's again, as when its mirror was
// made.
func (p *Patcher) Recheck(uid pod.UID) { p.retry.Put(uid) }

// errUntold says that the API server does not have a status.
var errUntold = errors.New("not every status was written: the API server is away, or refuses them")

// Flush has the newest statuses of the pods written, and returns when the API server has them. The
// error says that a try failed, which is made again later, or that ctx was done before. It waits
// for Run.
func (p *Patcher) Flush(ctx context.Context, uids []pod.UID) error {
	ask := flush{uids, make(chan []<-chan struct{}, 1)}
	select {
	case p.flushes <- ask:
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, done := range <-ask.begun {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if len(p.underWay(uids)) > 0 {
		return errUntold
	}
	return nil
}

// Compare looks at a pod, or a mirror, as the API server just showed it, and has the status written
// when it is not what it should be: somebody else changed it, or a write was lost. A pod that has
// ended and is being deleted is looked at too, for it may go. It does not block.
func (p *Patcher) Compare(api *v1.Pod) {
	uid := p.Pods.TranslateUID(api.UID)
	ours, ok := p.Manager.seen(uid)
	desired, known := p.Pods.Get(uid)
	if !ok || !known {
		return
	}
	if api.DeletionTimestamp != nil && ptr.Deref(api.DeletionGracePeriodSeconds, 1) > 0 && p.Manager.Finished(uid) { // else only its finalizers keep it
		p.retry.Put(uid)
		return
	}
	if patch, err := generatePatch(api.UID, &api.Status, p.merge(desired, &api.Status, &ours)); err != nil || patch != nil {
		p.retry.Put(uid)
	}
}

// merge returns the status that the API server is to have of the pod.
func (p *Patcher) merge(desired *v1.Pod, api, ours *v1.PodStatus) *v1.PodStatus {
	merged := mergeStatus(api, ours, mayRun(p.States.CouldHaveRunningContainers(desired.UID)))
	switch {
	case pod.IsStatic(desired):
		asMirror(merged, api)
	case pod.IsTerminal(api.Phase) && !pod.IsTerminal(merged.Phase):
		// Somebody else ended the pod and we have not seen it yet; that is never taken back.
		merged.Phase, merged.Reason, merged.Message = api.Phase, api.Reason, api.Message
	}
	return merged
}

// Run writes statuses until ctx is done.
func (p *Patcher) Run(ctx context.Context) error {
	changed, cancel := p.Manager.Subscribe()
	defer cancel()
	var writers sync.WaitGroup
	defer writers.Wait()
	slots := make(chan struct{}, parallelWrites)
	begin := func(uids []pod.UID) {
		for _, uid := range uids {
			if uid != "" && p.begin(uid) {
				writers.Go(func() { p.write(ctx, uid, slots) })
			}
		}
	}
	begin(p.Manager.UIDs())
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed.Wake():
			begin(changed.Take())
		case <-p.retry.Wake():
			begin(p.retry.Take())
		case ask := <-p.flushes:
			begin(ask.uids)
			ask.begun <- p.underWay(ask.uids)
		}
	}
}

// begin reports whether a writer is to be started for the pod; one that is under way looks again.
func (p *Patcher) begin(uid pod.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.writes[uid]; w != nil {
		if !w.again {
			w.again, w.next = true, time.Now()
		}
		return false
	}
	p.writes[uid] = &write{since: time.Now(), done: make(chan struct{})}
	return true
}

// underWay returns what is closed when the pods' writers leave or fail, of those that have some.
func (p *Patcher) underWay(uids []pod.UID) (done []<-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, uid := range uids {
		if w := p.writes[uid]; w != nil {
			done = append(done, w.done)
		}
	}
	return done
}

// end reports whether the pod's writer may leave.
func (p *Patcher) end(uid pod.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.writes[uid]
	if w.again {
		w.again, w.since = false, w.next
		return false
	}
	close(w.done)
	delete(p.writes, uid)
	return true
}

// fail wakes those who wait for a try of the pod's writer.
func (p *Patcher) fail(uid pod.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.writes[uid]
	close(w.done)
	w.done = make(chan struct{})
}

// Unwritten returns since when the API server does not have the pod's status as it is; zero if it
// has, or nothing is known to be missing.
func (p *Patcher) Unwritten(uid pod.UID) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.writes[uid]; w != nil {
		return w.since
	}
	return time.Time{}
}

// changedFor returns how long ago the status of a pod changed that is being written.
func (p *Patcher) changedFor(uid pod.UID) time.Duration {
	if since := p.Unwritten(uid); !since.IsZero() {
		return time.Since(since)
	}
	return 0
}

// write brings the API's copy of one pod up to date, and tries again while that fails.
func (p *Patcher) write(ctx context.Context, uid pod.UID, slots chan struct{}) {
	delay := writeRetry.DelayFunc()
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		err := p.syncOne(ctx, uid)
		<-slots
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			delay = writeRetry.DelayFunc()
			if p.end(uid) {
				return
			}
		default:
			level := slog.LevelWarn
			if errors.Is(err, errShown) {
				level = slog.LevelDebug // the watch lags behind, most of the time
			}
			p.Log.Log(ctx, level, "pod status not written", "uid", uid, "error", err)
			p.fail(uid)
			select {
			case <-time.After(delay()):
			case <-ctx.Done():
				return
			}
		}
	}
}

// syncOne writes one status, if there is anything to write.
func (p *Patcher) syncOne(ctx context.Context, uid pod.UID) error {
	ours, ok := p.Manager.seen(uid)
	if !ok {
		return nil // it is not known yet, or not any more
	}
	desired, ok := p.Pods.Get(uid)
	if !ok {
		if desired, ok = p.Manager.Pod(uid); !ok {
			return nil
		}
	}
	if p.isLetGo(desired) {
		return nil
	}
	target := uid
	if pod.IsStatic(desired) {
		mirror, ok := p.Pods.Mirror(pod.FullNameOf(desired))
		if !ok {
			return nil // its creation brings us back
		}
		target = mirror.UID
	}
	api, err := p.API.GetPod(ctx, desired.Namespace, desired.Name)
	if apierrors.IsNotFound(err) {
		return p.notFound(desired)
	}
	if err == nil && api.UID != target {
		return nil // another has its name
	}
	if err != nil {
		return fmt.Errorf("pod %s/%s: %w", desired.Namespace, desired.Name, err)
	}
	merged := p.merge(desired, &api.Status, &ours)
	patch, err := generatePatch(api.UID, &api.Status, merged)
	if err != nil {
		return fmt.Errorf("pod %s/%s: %w", desired.Namespace, desired.Name, err)
	}
	if patch != nil {
		if pod.IsStatic(desired) {
			p.BeforePatch(ctx)
		}
		began := time.Now()
		err := p.API.PatchPodStatus(ctx, desired.Namespace, desired.Name, patch)
		if apierrors.IsNotFound(err) {
			return p.notFound(desired)
		}
		if err != nil {
			return fmt.Errorf("pod %s/%s: patch status: %w", desired.Namespace, desired.Name, err)
		}
		p.Metrics.syncDuration.Observe(p.changedFor(uid).Seconds())
		if p.Journal != nil {
			p.Journal.Record(journal.Entry{
				Subject:   journal.Subject{UID: uid, Namespace: desired.Namespace, Name: desired.Name},
				Component: "status", Decision: "reported to the API server", Why: "phase " + string(merged.Phase), Took: time.Since(began).Round(time.Millisecond),
			})
		}
	}
	if api.DeletionTimestamp == nil || pod.IsMirror(api) || !pod.IsTerminal(merged.Phase) || !p.Manager.Finished(uid) {
		return nil
	}
	if err := p.API.DeletePod(ctx, desired.Namespace, desired.Name, uid); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("pod %s/%s: delete: %w", desired.Namespace, desired.Name, err)
	}
	return nil
}

// isLetGo reports whether the pod ends because the API server no longer showed it. That is no end
// of its own: if the server has it after all, or again, it is not told that the pod has failed,
// which could not be taken back. The pod starts afresh when what is left of it is gone.
func (p *Patcher) isLetGo(desired *v1.Pod) bool {
	l, ok := p.States.Get(desired.UID)
	return ok && l.Orphan && !pod.IsStatic(desired)
}

// errShown says that the API server does not find a pod that its watch shows.
var errShown = errors.New("the API server does not find the pod that it shows")

// notFound tells a pod that is gone from one that a server in trouble does not find: of the latter,
// the status is still to be told.
func (p *Patcher) notFound(desired *v1.Pod) error {
	if _, shown := p.Pods.Get(desired.UID); shown {
		return fmt.Errorf("pod %s/%s: %w", desired.Namespace, desired.Name, errShown)
	}
	return nil
}
