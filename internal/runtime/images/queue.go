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

// pullQueue bounds how many pulls run at one time. Those that a container waits for come before
// those that look ahead. Of them, the pull of the pod with the fewest running ones is next, and of
// several such that of the pod whose last turn is longest ago: a pod with many images does not keep
// the others waiting. Behind all of them are pulls from registries that were slow to fail: such a
// registry holds up the others for one pull, and not for one after the other.
type pullQueue struct {
	mu      sync.Mutex
	atOnce  int
	free    int                  // guarded by mu
	running map[pod.UID]int      // guarded by mu; without zeros
	last    map[pod.UID]int      // guarded by mu; the number of its last turn, of each pod that has or waits for one
	given   int                  // guarded by mu; turns given so far
	waiting []*waiter            // guarded by mu; in order of arrival
	slow    map[string]time.Time // guarded by mu; registries whose last pull was slow to fail, and when
}

// claim is what a turn is wanted for.
type claim struct {
	uid      pod.UID
	registry string
	ahead    *atomic.Bool // no container waits for it; it may become false
}

type waiter struct {
	claim
	turn chan struct{} // closed when it is the waiter's turn
}

const (
	// slowFailure is how long a pull takes at least that is slow to fail: longer than a registry
	// needs to refuse one.
	slowFailure = 20 * time.Second
	// slowExpiry is how long a registry is remembered for that, which is longer than any pull is
	// held back after it.
	slowExpiry = 2 * backOffCap
)

func newPullQueue(atOnce int) *pullQueue {
	return &pullQueue{atOnce: atOnce, free: atOnce, running: map[pod.UID]int{}, last: map[pod.UID]int{}, slow: map[string]time.Time{}}
}

// take waits for a turn, which the caller gives back with give. When ctx ends first, it returns
// ctx's cause.
func (t *pullQueue) take(ctx context.Context, c claim) error {
	w := &waiter{claim: c, turn: make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, w)
	t.next()
	t.mu.Unlock()
	select {
	case <-w.turn:
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
	if i < 0 { // it came at the same moment
		t.give(c.uid)
	}
	return context.Cause(ctx)
}

// give ends a turn.
func (t *pullQueue) give(uid pod.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	if t.running[uid]--; t.running[uid] == 0 {
		delete(t.running, uid)
		t.forget(uid)
	}
	t.next()
}

// ended notes how a pull from the registry has ended, now.
func (t *pullQueue) ended(registry string, took time.Duration, now time.Time, err error) {
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

// forget drops what is known of a pod that neither has a turn nor waits for one; the caller holds
// mu.
func (t *pullQueue) forget(uid pod.UID) {
	if t.running[uid] == 0 && !slices.ContainsFunc(t.waiting, func(w *waiter) bool { return w.uid == uid }) {
		delete(t.last, uid)
	}
}

// next hands out what is free; the caller holds mu.
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
		t.given++
		t.running[w.uid]++
		t.last[w.uid] = t.given
		close(w.turn)
	}
}

// places returns at which place those that wait have their turns, as things are now, by what says
// whether they look ahead; 1 is the next. atOnce is how many have one at one time.
func (t *pullQueue) places() (places map[*atomic.Bool]int, atOnce int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	inOrder := slices.Clone(t.waiting)
	slices.SortStableFunc(inOrder, func(a, b *waiter) int { return t.compare(a.claim, b.claim) })
	places = map[*atomic.Bool]int{}
	for i, w := range inOrder {
		places[w.ahead] = i + 1
	}
	return places, t.atOnce
}

// compare returns less than 0 when a comes before b, and 0 when whoever arrived first does; the
// caller holds mu.
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
