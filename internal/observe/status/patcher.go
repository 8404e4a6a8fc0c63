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

// API is the part of the API server that Patcher uses. Errors are those of apimachinery
// (apierrors.IsNotFound and so on).
type API interface {
	GetPod(ctx context.Context, namespace, name string) (*v1.Pod, error)
	PatchPodStatus(ctx context.Context, namespace, name string, patch []byte) error
	// DeletePod deletes the pod immediately if it still has the UID.
	DeletePod(ctx context.Context, namespace, name string, uid pod.UID) error
}

// PatcherConfig is the configuration of a Patcher.
type PatcherConfig struct {
	API     API
	Manager *Manager
	Pods    *pod.Manager
	States  *pod.States
	// BeforePatch persists the agent's state of static pods, so that the next agent does not report
	// otherwise.
	BeforePatch func(context.Context)
	// Metrics measure the latency of status updates.
	Metrics *Metrics
	// Journal records written statuses.
	Journal *journal.Journal
	Log     *slog.Logger
}

// Patcher writes the newest status of each pod to the API server, immediately and one write per pod
// at a time; later changes are part of the next write. A static pod's status goes to its mirror. An
// API pod with a deletion timestamp is deleted once it has terminated and its status is written.
type Patcher struct {
	PatcherConfig
	retry   *pod.Inbox[pod.UID]
	flushes chan flush

	mu     sync.Mutex
	writes map[pod.UID]*write // guarded by mu; in progress
}

// write is one pod's writing goroutine.
type write struct {
	again bool          // guarded by Patcher.mu; something changed since the writer read the status
	since time.Time     // guarded by Patcher.mu; when the first unwritten change happened
	next  time.Time     // guarded by Patcher.mu; the same for the change that set again
	done  chan struct{} // guarded by Patcher.mu; closed when the writer returns or a try has failed
}

// flush requests that Run writes statuses, and the channels that are closed after the try.
type flush struct {
	uids  []pod.UID
	begun chan []<-chan struct{} // capacity 1
}

const parallelWrites = 16

// writeRetry is the back-off of failed writes.
var writeRetry = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Cap: 10 * time.Second, Steps: math.MaxInt}

// NewPatcher returns a patcher.
func NewPatcher(cfg PatcherConfig) *Patcher {
	return &Patcher{PatcherConfig: cfg, retry: pod.NewInbox[pod.UID](), flushes: make(chan flush), writes: map[pod.UID]*write{}}
}

// Recheck makes the patcher compare a pod's status with the API's again, for example after its
// mirror was created.
func (p *Patcher) Recheck(uid pod.UID) { p.retry.Put(uid) }

var errNotWritten = errors.New("not every status was written: the API server is away, or refuses them")

// Flush writes the newest statuses of the pods, and returns when the API server has them. The error
// means that a write failed, which is retried later, or that ctx is done. It requires that Run is
// running.
func (p *Patcher) Flush(ctx context.Context, uids []pod.UID) error {
	request := flush{uids, make(chan []<-chan struct{}, 1)}
	select {
	case p.flushes <- request:
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, done := range <-request.begun {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if len(p.underWay(uids)) > 0 {
		return errNotWritten
	}
	return nil
}

// Compare compares a pod, or a mirror, from the API server, and writes the status if it differs:
// another client changed it, or a write was lost. A terminated pod with a deletion timestamp is
// checked, too, because it may be deleted. It does not block.
func (p *Patcher) Compare(api *v1.Pod) {
	uid := p.Pods.TranslateUID(api.UID)
	ours, ok := p.Manager.seen(uid)
	desired, known := p.Pods.Get(uid)
	if !ok || !known {
		return
	}
	if api.DeletionTimestamp != nil && ptr.Deref(api.DeletionGracePeriodSeconds, 1) > 0 && p.Manager.Finished(uid) { // otherwise only its finalizers delay the deletion
		p.retry.Put(uid)
		return
	}
	if patch, err := generatePatch(api.UID, &api.Status, p.merge(desired, &api.Status, &ours)); err != nil || patch != nil {
		p.retry.Put(uid)
	}
}

// merge returns the status to write to the API server.
func (p *Patcher) merge(desired *v1.Pod, api, ours *v1.PodStatus) *v1.PodStatus {
	merged := mergeStatus(api, ours, mayRun(p.States.CouldHaveRunningContainers(desired.UID)))
	switch {
	case pod.IsStatic(desired):
		asMirror(merged, api)
	case pod.IsTerminal(api.Phase) && !pod.IsTerminal(merged.Phase):
		// Another client set a terminal phase that the agent has not seen yet; it is final.
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
		case request := <-p.flushes:
			begin(request.uids)
			request.begun <- p.underWay(request.uids)
		}
	}
}

// begin reports whether a writer must be started for the pod; a running one checks again.
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

// underWay returns channels that are closed when the running writers of the pods return or fail.
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

// end reports whether the pod's writer can return.
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

// fail notifies those that wait for a try of the pod's writer.
func (p *Patcher) fail(uid pod.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.writes[uid]
	close(w.done)
	w.done = make(chan struct{})
}

// Unwritten returns since when the API server's status of the pod is out of date; zero if no change
// is known to be missing.
func (p *Patcher) Unwritten(uid pod.UID) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.writes[uid]; w != nil {
		return w.since
	}
	return time.Time{}
}

// changedFor returns the time since the change of a pod's status that is being written.
func (p *Patcher) changedFor(uid pod.UID) time.Duration {
	if since := p.Unwritten(uid); !since.IsZero() {
		return time.Since(since)
	}
	return 0
}

// write updates the API's copy of one pod's status, with retries.
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
			if errors.Is(err, errInconsistent) {
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
		return nil // not known yet, or removed
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
			return nil // the creation of the mirror causes a retry
		}
		target = mirror.UID
	}
	api, err := p.API.GetPod(ctx, desired.Namespace, desired.Name)
	if apierrors.IsNotFound(err) {
		return p.notFound(desired)
	}
	if err == nil && api.UID != target {
		return nil // another pod has the name
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
		p.Journal.Record(journal.Entry{
			Subject:   journal.Subject{UID: uid, Namespace: desired.Namespace, Name: desired.Name},
			Component: "status", Decision: "reported to the API server", Why: "phase " + string(merged.Phase), Took: time.Since(began).Round(time.Millisecond),
		})
	}
	if api.DeletionTimestamp == nil || pod.IsMirror(api) || !pod.IsTerminal(merged.Phase) || !p.Manager.Finished(uid) {
		return nil
	}
	if err := p.API.DeletePod(ctx, desired.Namespace, desired.Name, uid); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("pod %s/%s: delete: %w", desired.Namespace, desired.Name, err)
	}
	return nil
}

// isLetGo reports whether the pod is terminated because the API server no longer listed it. Such a
// pod is not reported as failed, which would be final, in case the server has it after all, or
// again. The pod is started anew once the remains are cleaned up.
func (p *Patcher) isLetGo(desired *v1.Pod) bool {
	l, ok := p.States.Get(desired.UID)
	return ok && l.Orphan && !pod.IsStatic(desired)
}

// errInconsistent is returned if the API server does not find a pod that its watch lists.
var errInconsistent = errors.New("the API server does not find the pod that it shows")

// notFound distinguishes a deleted pod from one that a server in trouble does not find: the status
// of the latter still has to be written.
func (p *Patcher) notFound(desired *v1.Pod) error {
	if _, found := p.Pods.Get(desired.UID); found {
		return fmt.Errorf("pod %s/%s: %w", desired.Namespace, desired.Name, errInconsistent)
	}
	return nil
}
