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
	mu      sync.Mutex
	airborn map[types.NamespacedName]chan struct{} // guarded by mu; closed on unlock
}

// take waits until all the claims are unlocked, and locks them until land is called. It fails when
// ctx is done.
func (f *inflight) take(ctx context.Context, keys []types.NamespacedName) (land func(), err error) {
	mine := make(chan struct{})
	for {
		ahead := f.tryTake(keys, mine)
		if ahead == nil {
			return func() { f.land(keys, mine) }, nil
		}
		select {
		case <-ahead:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// tryTake returns nil if it has locked the claims, and else the channel to wait for.
func (f *inflight) tryTake(keys []types.NamespacedName, mine chan struct{}) (ahead chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range keys {
		if other := f.airborn[key]; other != nil {
			return other
		}
	}
	if f.airborn == nil {
		f.airborn = map[types.NamespacedName]chan struct{}{}
	}
	for _, key := range keys {
		f.airborn[key] = mine
	}
	return nil
}

func (f *inflight) land(keys []types.NamespacedName, mine chan struct{}) {
	f.mu.Lock()
	for _, key := range keys {
		delete(f.airborn, key)
	}
	f.mu.Unlock()
	close(mine)
}

func compareKeys(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
