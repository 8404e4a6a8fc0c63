package dra

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"berth/internal/pod"
)

// The back-off of retries doubles from retryFirst to retryMax. Retries are needed because nodes may
// read ResourceClaims but not watch them.
const (
	retryFirst = time.Second
	retryMax   = time.Minute
)

func nextDelay(last time.Duration) time.Duration { return min(max(2*last, retryFirst), retryMax) }

// wait is the retry state of a pod whose claims could not be prepared or unprepared.
type wait struct {
	// causes are the causes that may make the next try succeed.
	causes []string
	delay  time.Duration
	due    time.Time // zero: the pod was woken and has not retried yet
}

func driverCause(name string) string             { return "driver " + name }
func claimCause(key types.NamespacedName) string { return "claim " + key.String() }

// waits holds the pods whose claims could not be prepared or unprepared. It is safe for concurrent
// use.
type waits struct {
	changed *pod.Publisher[pod.UID]

	mu   sync.Mutex
	pods map[pod.UID]*wait // guarded by mu
}

// failed records a failure, and returns when the next try is due.
func (w *waits) failed(uid pod.UID, causes []string, now time.Time) (due time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.pods[uid]
	if v == nil {
		v = &wait{}
		w.pods[uid] = v
	}
	v.causes, v.delay = causes, nextDelay(v.delay)
	v.due = now.Add(v.delay)
	return v.due
}

func (w *waits) remove(uid pod.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, uid)
}

func (w *waits) retain(keep map[pod.UID]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.pods, func(uid pod.UID, _ *wait) bool { return !keep[uid] })
}

// resolved wakes the pods that wait for the cause.
func (w *waits) resolved(cause string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid, v := range w.pods {
		if slices.Contains(v.causes, cause) {
			v.delay, v.due = 0, time.Time{}
			w.changed.Publish(uid)
		}
	}
}

// fire wakes the pods that are due, and returns when the next pod is due; zero: never.
func (w *waits) fire(now time.Time) (next time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid, v := range w.pods {
		switch {
		case v.due.IsZero():
		case v.due.After(now):
			next = earlier(next, v.due)
		default:
			v.due = time.Time{}
			w.changed.Publish(uid)
		}
	}
	return next
}

// orphans are deleted pods whose claims must be unprepared. It is safe for concurrent use.
type orphans struct {
	mu    sync.Mutex
	pods  map[pod.UID]bool // guarded by mu
	delay time.Duration    // guarded by mu
	due   time.Time        // guarded by mu
	busy  bool             // guarded by mu; a try is in progress
}

// set replaces the pods and makes them due now.
func (o *orphans) set(pods map[pod.UID]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pods, o.delay, o.due = pods, 0, time.Time{}
}

// retryNow makes the pods due now.
func (o *orphans) retryNow() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.delay, o.due = 0, time.Time{}
}

// begin returns the pods to try now, or else the time when they are due; zero: never.
func (o *orphans) begin(now time.Time) (try []pod.UID, next time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case len(o.pods) == 0 || o.busy:
		return nil, time.Time{}
	case o.due.After(now):
		return nil, o.due
	}
	o.busy = true
	return slices.Sorted(maps.Keys(o.pods)), time.Time{}
}

// end removes the pods that succeeded and schedules a retry for the others.
func (o *orphans) end(done []pod.UID, tried int, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy = false
	for _, uid := range done {
		delete(o.pods, uid)
	}
	if len(done) < tried {
		o.delay = nextDelay(o.delay)
		o.due = now.Add(o.delay)
	}
}
