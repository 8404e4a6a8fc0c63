package dra

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"berth/internal/pod"
)

// What failed is tried again that far apart, doubling. The API server lets nodes read claims, and
// watch none.
const (
	retryFirst = time.Second
	retryMax   = time.Minute
)

func nextDelay(last time.Duration) time.Duration { return min(max(2*last, retryFirst), retryMax) }

// wait is a pod whose claims could not be prepared.
type wait struct {
	// causes are what may make the next try succeed.
	causes []string
	delay  time.Duration
	due    time.Time // zero: the pod was woken, and has not tried yet
}

func driverCause(name string) string             { return "driver " + name }
func claimCause(key types.NamespacedName) string { return "claim " + key.String() }

// waits are the pods whose claims could not be prepared. It is safe for concurrent use.
type waits struct {
	wake func(pod.UID)

	mu   sync.Mutex
	pods map[pod.UID]*wait // guarded by mu
}

// failed notes a try that failed, and returns when the next one is due.
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

// over says that the pod waits no more.
func (w *waits) over(uid pod.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, uid)
}

// retain forgets all pods but those to keep.
func (w *waits) retain(keep map[pod.UID]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.pods, func(uid pod.UID, _ *wait) bool { return !keep[uid] })
}

// happened wakes the pods that wait for the cause.
func (w *waits) happened(cause string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid, v := range w.pods {
		if slices.Contains(v.causes, cause) {
			v.delay, v.due = 0, time.Time{}
			w.wake(uid)
		}
	}
}

// fire wakes the pods whose time has come, and returns when the next is due; zero for never.
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
			w.wake(uid)
		}
	}
	return next
}

// orphans are pods that are gone and whose claims are still to be taken back. It is safe for
// concurrent use.
type orphans struct {
	mu    sync.Mutex
	pods  map[pod.UID]bool // guarded by mu
	delay time.Duration    // guarded by mu
	due   time.Time        // guarded by mu
	busy  bool             // guarded by mu; a try is under way
}

// set replaces them, and lets them be tried at once.
func (o *orphans) set(pods map[pod.UID]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pods, o.delay, o.due = pods, 0, time.Time{}
}

// hurry lets them be tried at once.
func (o *orphans) hurry() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.delay, o.due = 0, time.Time{}
}

// begin returns those to try now, if their time has come, and else when it comes; zero for never.
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

// end notes which were done; the rest is tried again.
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
