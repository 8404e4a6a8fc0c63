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
	// maxRemembered bounds the answers of one kind that are remembered.
	maxRemembered = 4096
	// failedAge is how long it is remembered at most that an answer was not found.
	failedAge = 15 * time.Second
	// abandon is how long the end waits for questions that nobody answers: that of a file system
	// whose server is gone cannot be given up.
	abandon = 5 * time.Second
)

// remembered remembers answers that take long to find. One is searched for when a question comes
// and what is known is too old; that goes on when the question is over, so that the next one finds
// the answer.
type remembered[K comparable, V any] struct {
	find  func(ctx context.Context, key K) (V, error)
	log   *slog.Logger
	slots chan struct{} // its capacity is how many are looked for at a time
	under sync.WaitGroup

	mu    sync.Mutex
	ctx   context.Context  // guarded by mu; of run, nil before and after
	known map[K]*answer[V] // guarded by mu
}

// answer is what was found, or is being looked for.
type answer[V any] struct {
	value V
	ok    bool      // value is known
	at    time.Time // of the last try
	asked time.Time
	done  chan struct{} // closed when the try under way ends; nil: there is none
}

func newRemembered[K comparable, V any](log *slog.Logger, atOnce int, find func(context.Context, K) (V, error)) *remembered[K, V] {
	return &remembered[K, V]{find: find, log: log, slots: make(chan struct{}, atOnce), known: map[K]*answer[V]{}}
}

// run lets tries begin until ctx is done, and waits for those under way.
func (r *remembered[K, V]) run(ctx context.Context) {
	r.mu.Lock()
	r.ctx = ctx
	r.mu.Unlock()
	<-ctx.Done()
	r.mu.Lock()
	r.ctx = nil
	r.mu.Unlock()
	ended := make(chan struct{})
	go func() { r.under.Wait(); close(ended) }()
	limit := time.NewTimer(abandon)
	defer limit.Stop()
	select {
	case <-ended:
	case <-limit.C:
	}
}

// forget forgets what nobody has asked for since.
func (r *remembered[K, V]) forget(since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetLocked(since)
}

func (r *remembered[K, V]) forgetLocked(since time.Time) {
	for key, a := range r.known {
		if a.done == nil && !a.asked.After(since) {
			delete(r.known, key)
		}
	}
}

// get returns an answer that is at most maxAge old if ctx gives the time, else what is known; false
// when nothing is, or when it could not be found.
func (r *remembered[K, V]) get(ctx context.Context, key K, maxAge time.Duration) (value V, at time.Time, ok bool) {
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

// begin looks for an answer, unless one is known that is at most maxAge old: done is closed when
// that ends, and nil where there is nothing to wait for. There is no answer to come where too many
// are remembered already.
func (r *remembered[K, V]) begin(key K, maxAge time.Duration) (a *answer[V], done <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	a = r.known[key]
	if a == nil {
		if len(r.known) >= maxRemembered {
			r.forgetLocked(now.Add(-idle))
		}
		if len(r.known) >= maxRemembered {
			return nil, nil
		}
		a = &answer[V]{}
		r.known[key] = a
	}
	a.asked = now
	if !a.ok {
		maxAge = min(maxAge, failedAge)
	}
	if !a.at.IsZero() && now.Sub(a.at) < maxAge {
		return a, nil
	}
	if a.done == nil && r.ctx != nil {
		a.done = make(chan struct{})
		of := r.ctx
		r.under.Go(func() { r.try(of, key, a) })
	}
	return a, a.done
}

// try is one try to find an answer.
func (r *remembered[K, V]) try(ctx context.Context, key K, a *answer[V]) {
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
		delete(r.known, key)
	case err != nil && !errors.Is(err, errors.ErrUnsupported):
		r.log.Debug("not found what is used", "of", key, "error", err)
	}
}
