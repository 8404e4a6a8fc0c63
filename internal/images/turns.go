package images

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"berth/internal/pod"
)

// turns bounds how many pulls run at one time. Those that a container waits for come before those that look ahead. Of them, the pull of the pod with the fewest running ones is next, and of several
// such that of the pod whose last turn is longest ago: a pod with many images does not keep the others waiting.
type turns struct {
	mu      sync.Mutex
	free    int             // guarded by mu
	running map[pod.UID]int // guarded by mu; without zeros
	last    map[pod.UID]int // guarded by mu; the number of its last turn, of each pod that has or waits for one
	given   int             // guarded by mu; turns given so far
	waiting []*waiter       // guarded by mu; in order of arrival
}

type waiter struct {
	uid   pod.UID
	turn  chan struct{} // closed when it is the waiter's turn
	ahead *atomic.Bool  // no container waits for it; it may become false
}

func newTurns(atOnce int) *turns {
	return &turns{free: atOnce, running: map[pod.UID]int{}, last: map[pod.UID]int{}}
}

// take waits for a turn, which the caller gives back with give. ahead says that no container waits for it, as long as it does. When ctx ends
// first, it returns ctx's cause.
func (t *turns) take(ctx context.Context, uid pod.UID, ahead *atomic.Bool) error {
	w := &waiter{uid: uid, turn: make(chan struct{}), ahead: ahead}
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
		t.forget(uid)
	}
	t.mu.Unlock()
	if i < 0 { // it came at the same moment
		t.give(uid)
	}
	return context.Cause(ctx)
}

// give ends a turn.
func (t *turns) give(uid pod.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	if t.running[uid]--; t.running[uid] == 0 {
		delete(t.running, uid)
		t.forget(uid)
	}
	t.next()
}

// forget drops what is known of a pod that neither has a turn nor waits for one; the caller holds mu.
func (t *turns) forget(uid pod.UID) {
	if t.running[uid] == 0 && !slices.ContainsFunc(t.waiting, func(w *waiter) bool { return w.uid == uid }) {
		delete(t.last, uid)
	}
}

// next hands out what is free; the caller holds mu.
func (t *turns) next() {
	for t.free > 0 && len(t.waiting) > 0 {
		best := 0
		for i, w := range t.waiting {
			b := t.waiting[best]
			if w.ahead.Load() != b.ahead.Load() {
				if b.ahead.Load() {
					best = i
				}
				continue
			}
			if cmp.Or(cmp.Compare(t.running[w.uid], t.running[b.uid]), cmp.Compare(t.last[w.uid], t.last[b.uid])) < 0 {
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
