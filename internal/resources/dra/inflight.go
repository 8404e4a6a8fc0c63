package dra

import (
	"cmp"
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// inflight lets one at a time have a claim prepared or taken back. Who needs several gets them at
// once, so that no two wait for each other.
type inflight struct {
	mu      sync.Mutex
	airborn map[types.NamespacedName]chan struct{} // guarded by mu; closed when the flight ends
}

// take waits until none of the claims is in use by another and takes them all, until land is
// called. It ends with ctx.
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

// tryTake returns what to wait for, nil if the claims are taken.
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
