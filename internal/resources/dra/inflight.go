package dra

import (
	"cmp"
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// inflight is a lock per claim, held while the claim is prepared or unprepared. Several claims are
// locked at once, which prevents deadlocks.
type inflight struct {
	mu     sync.Mutex
	locked map[types.NamespacedName]chan struct{} // guarded by mu; closed on unlock
}

// lock waits until all the claims are unlocked, and locks them until unlock is called. It fails
// when ctx is done.
func (f *inflight) lock(ctx context.Context, keys []types.NamespacedName) (unlock func(), err error) {
	unlocked := make(chan struct{})
	for {
		other := f.tryLock(keys, unlocked)
		if other == nil {
			return func() { f.unlock(keys, unlocked) }, nil
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// tryLock returns nil if it has locked the claims, and else the channel to wait for.
func (f *inflight) tryLock(keys []types.NamespacedName, unlocked chan struct{}) chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range keys {
		if other := f.locked[key]; other != nil {
			return other
		}
	}
	if f.locked == nil {
		f.locked = map[types.NamespacedName]chan struct{}{}
	}
	for _, key := range keys {
		f.locked[key] = unlocked
	}
	return nil
}

func (f *inflight) unlock(keys []types.NamespacedName, unlocked chan struct{}) {
	f.mu.Lock()
	for _, key := range keys {
		delete(f.locked, key)
	}
	f.mu.Unlock()
	close(unlocked)
}

func compareKeys(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
