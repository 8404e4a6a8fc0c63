package images

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"berth/internal/pod"
)

// pullQueue bounds concurrent pulls. Pulls that containers wait for precede prefetches. Among them,
// the pod with the fewest active pulls is next, then the pod whose last start of a pull is longest
// ago: a pod with many images does not block others. Pulls from registries that were slow to fail
// come last: such a registry delays others by one pull, not by a series.
type pullQueue struct {
	mu      sync.Mutex
	limit   int
	free    int                  // guarded by mu
	running map[pod.UID]int      // guarded by mu; without zeros
	last    map[pod.UID]int      // guarded by mu; sequence number of the last start, of each pod with an active or queued pull
	started int                  // guarded by mu; number of starts so far
	waiting []*waiter            // guarded by mu; in order of arrival
	slow    map[string]time.Time // guarded by mu; when the last pull of a registry was slow to fail
}

// claim is a request for a slot in the queue.
type claim struct {
	uid      pod.UID
	registry string
	ahead    *atomic.Bool // no container waits for it; it may become false
}

type waiter struct {
	claim
	ready chan struct{} // closed when the pull may start
}

const (
	// slowFailure is the minimum duration of a slow failure: longer than a registry needs to reject
	// a pull.
	slowFailure = 20 * time.Second
	// slowExpiry is how long a slow failure counts, which is longer than any pull back-off.
	slowExpiry = 2 * backOffCap
)

func newPullQueue(limit int) *pullQueue {
	return &pullQueue{limit: limit, free: limit, running: map[pod.UID]int{}, last: map[pod.UID]int{}, slow: map[string]time.Time{}}
}

// acquire waits for a slot, which the caller releases by give. If ctx is done first, it returns
// ctx's cause.
func (t *pullQueue) acquire(ctx context.Context, c claim) error {
	w := &waiter{claim: c, ready: make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, w)
	t.next()
	t.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	i := slices.Index(t.waiting, w)
	if i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
		t.forget(c.uid)
	}
	t.mu.Unlock()
	if i < 0 { // a slot was assigned at the same moment
		t.release(c.uid)
	}
	return context.Cause(ctx)
}

// release releases a slot.
func (t *pullQueue) release(uid pod.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	if t.running[uid]--; t.running[uid] == 0 {
		delete(t.running, uid)
		t.forget(uid)
	}
	t.next()
}

// recordResult records the result of a pull from the registry.
func (t *pullQueue) recordResult(registry string, took time.Duration, now time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.slow, func(_ string, at time.Time) bool { return now.Sub(at) > slowExpiry })
	switch {
	case err == nil:
		delete(t.slow, registry)
	case took >= slowFailure:
		t.slow[registry] = now
	}
}

// forget drops the state of a pod with no active or queued pull; the caller holds mu.
func (t *pullQueue) forget(uid pod.UID) {
	if t.running[uid] == 0 && !slices.ContainsFunc(t.waiting, func(w *waiter) bool { return w.uid == uid }) {
		delete(t.last, uid)
	}
}

// next assigns free slots; the caller holds mu.
func (t *pullQueue) next() {
	for t.free > 0 && len(t.waiting) > 0 {
		best := 0
		for i, w := range t.waiting {
			if t.compare(w.claim, t.waiting[best].claim) < 0 {
				best = i
			}
		}
		w := t.waiting[best]
		t.waiting = slices.Delete(t.waiting, best, best+1)
		t.free--
		t.started++
		t.running[w.uid]++
		t.last[w.uid] = t.started
		close(w.ready)
	}
}

// positions returns the current positions of queued pulls, by their ahead flags; 1 is the next.
// atOnce is the maximum number of concurrent pulls.
func (t *pullQueue) positions() (positions map[*atomic.Bool]int, limit int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	inOrder := slices.Clone(t.waiting)
	slices.SortStableFunc(inOrder, func(a, b *waiter) int { return t.compare(a.claim, b.claim) })
	positions = map[*atomic.Bool]int{}
	for i, w := range inOrder {
		positions[w.ahead] = i + 1
	}
	return positions, t.limit
}

// compare returns less than 0 if a precedes b, and 0 if the order of arrival decides; the caller
// holds mu.
func (t *pullQueue) compare(a, b claim) int {
	rank := func(c claim) int {
		_, slow := t.slow[c.registry]
		switch {
		case slow:
			return 2
		case c.ahead.Load():
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(t.running[a.uid], t.running[b.uid]), cmp.Compare(t.last[a.uid], t.last[b.uid]))
}
