package images

import (
	"sync"
	"time"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

const (
	backOffBase   = 10 * time.Second
	backOffCap    = 300 * time.Second
	backOffExpiry = 600 * time.Second // after the last use
	// failureShown is how long a pod shows the failure of a pull before it shows that it is held
	// back.
	failureShown = 500 * time.Millisecond
)

type backOffKey struct {
	uid   pod.UID
	image string
}

type backOffEntry struct {
	delay    time.Duration
	until    time.Time
	lastUsed time.Time
	cause    *Error          // of the last failed pull
	recorded map[string]bool // the containers of which it was told that they are held back
}

// backOff holds back pulls that failed. An entry is forgotten when it was not used for
// backOffExpiry, not when a pull succeeds: a registry that answers every other time is still a bad
// registry.
type backOff struct {
	mu      sync.Mutex
	entries map[backOffKey]backOffEntry // guarded by mu
}

// check returns why the container's image may not be pulled now, or nil when it may: for a moment
// still the failure that began the back-off, with the end of that moment, then the back-off itself.
// again says that the answer is the same as before.
func (b *backOff) check(key backOffKey, container string, now time.Time) (held *Error, again bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.entries[key]
	if !ok || e.expired(now) || !now.Before(e.until) {
		return nil, false
	}
	e.lastUsed = now
	b.entries[key] = e
	if shown := e.cause.BackOffUntil; now.Before(shown) {
		return e.cause, true
	}
	again = e.recorded[container]
	e.recorded[container] = true
	return &Error{Reason: lifecycle.ImagePullBackOff, Message: e.cause.Error(), BackOffUntil: e.until, cause: e.cause}, again
}

// fail notes a failed pull, and returns its error with when the pod is to be looked at again.
// Failures of one pull that several containers of a pod waited for count once: the first of them
// opens a back-off, and the others find it open.
func (b *backOff) fail(key backOffKey, cause Error, now time.Time) *Error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, e := range b.entries {
		if e.expired(now) {
			delete(b.entries, k)
		}
	}
	e := b.entries[key]
	if now.Before(e.until) {
		return e.cause
	}
	cause.BackOffUntil = now.Add(failureShown)
	e = backOffEntry{delay: nextDelay(e.delay), lastUsed: now, cause: &cause, recorded: map[string]bool{}}
	e.until = now.Add(e.delay)
	b.entries[key] = e
	return e.cause
}

func (e backOffEntry) expired(now time.Time) bool { return now.Sub(e.lastUsed) > backOffExpiry }

func nextDelay(last time.Duration) time.Duration {
	return min(max(2*last, backOffBase), backOffCap)
}
