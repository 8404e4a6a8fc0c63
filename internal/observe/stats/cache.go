package stats

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"time"
)

const (
	// maxCached bounds the cached answers of one kind.
	maxCached = 4096
	// failedAge is the maximum time for which a failure is cached.
	failedAge = 15 * time.Second
	// shutdownWait bounds the wait for pending queries at shutdown: a call to a file system with an
	// unreachable server cannot be cancelled.
	shutdownWait = 5 * time.Second
)

// cache caches answers that take long to find. A request starts a query if the cached answer
// is too old; the query continues after the request, so that the next one finds the answer.
type cache[K comparable, V any] struct {
	find    func(ctx context.Context, key K) (V, error)
	log     *slog.Logger
	slots   chan struct{} // the capacity is the limit of concurrent queries
	running sync.WaitGroup

	mu      sync.Mutex
	ctx     context.Context  // guarded by mu; of run, nil before and after
	answers map[K]*answer[V] // guarded by mu
}

// answer is a cached answer or a running query.
type answer[V any] struct {
	value     V
	ok        bool      // value is valid
	at        time.Time // of the last try
	requested time.Time
	done      chan struct{} // closed when the running query is done; nil: none is running
}

func newCache[K comparable, V any](log *slog.Logger, limit int, find func(context.Context, K) (V, error)) *cache[K, V] {
	return &cache[K, V]{find: find, log: log, slots: make(chan struct{}, limit), answers: map[K]*answer[V]{}}
}

// run enables queries until ctx is done, and waits for running ones.
func (r *cache[K, V]) run(ctx context.Context) {
	r.mu.Lock()
	r.ctx = ctx
	r.mu.Unlock()
	<-ctx.Done()
	r.mu.Lock()
	r.ctx = nil
	r.mu.Unlock()
	done := make(chan struct{})
	go func() { r.running.Wait(); close(done) }()
	timeout := time.NewTimer(shutdownWait)
	defer timeout.Stop()
	select {
	case <-done:
	case <-timeout.C:
	}
}

// forget drops answers that were not requested since.
func (r *cache[K, V]) forget(since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetLocked(since)
}

func (r *cache[K, V]) forgetLocked(since time.Time) {
	for key, a := range r.answers {
		if a.done == nil && !a.requested.After(since) {
			delete(r.answers, key)
		}
	}
}

// get returns an answer that is at most maxAge old if ctx allows the time, otherwise the cached
// one; false if there is none, or it could not be found.
func (r *cache[K, V]) get(ctx context.Context, key K, maxAge time.Duration) (value V, at time.Time, ok bool) {
	a, done := r.begin(key, maxAge)
	if a == nil {
		return value, at, false
	}
	if done != nil {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return a.value, a.at, a.ok
}

// begin starts a query, unless the cached answer is at most maxAge old: done is closed when it
// completes, and nil if there is nothing to wait for. a is nil if the cache is full.
func (r *cache[K, V]) begin(key K, maxAge time.Duration) (a *answer[V], done <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	a = r.answers[key]
	if a == nil {
		if len(r.answers) >= maxCached {
			r.forgetLocked(now.Add(-idle))
		}
		if len(r.answers) >= maxCached {
			return nil, nil
		}
		a = &answer[V]{}
		r.answers[key] = a
	}
	a.requested = now
	if !a.ok {
		maxAge = min(maxAge, failedAge)
	}
	if !a.at.IsZero() && now.Sub(a.at) < maxAge {
		return a, nil
	}
	if a.done == nil && r.ctx != nil {
		a.done = make(chan struct{})
		of := r.ctx
		r.running.Go(func() { r.try(of, key, a) })
	}
	return a, a.done
}

func (r *cache[K, V]) try(ctx context.Context, key K, a *answer[V]) {
	var value V
	var err error
	at := time.Now()
	select {
	case r.slots <- struct{}{}:
		at = time.Now()
		value, err = r.find(ctx, key)
		<-r.slots
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	close(a.done)
	a.done = nil
	if ctx.Err() != nil {
		return
	}
	a.value, a.ok, a.at = value, err == nil, at
	switch {
	case errors.Is(err, fs.ErrNotExist):
		delete(r.answers, key)
	case err != nil && !errors.Is(err, errors.ErrUnsupported):
		r.log.Debug("not found what is used", "of", key, "error", err)
	}
}
