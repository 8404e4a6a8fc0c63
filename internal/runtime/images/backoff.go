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
	// failureShown is how long a pod reports the failure of a pull before it reports the back-off.
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
	cause    *Error          // the error of the last failed pull
	recorded map[string]bool // containers whose back-off was reported
}

// backOff delays pulls after failures. An entry expires when it was not used for backOffExpiry, not
// when a pull succeeds: a registry that fails every other time is still unreliable.
type backOff struct {
	mu      sync.Mutex
	entries map[backOffKey]backOffEntry // guarded by mu
}

// check returns why the container's image may not be pulled now, or nil if it may: for failureShown
// the failure that started the back-off, with the end of that period, then the back-off itself.
// again reports that the same error was returned before.
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

// fail records a failed pull, and returns its error with the time of the next retry. A failed pull
// that several containers of a pod waited for counts once: the first starts a back-off, and the
// others find it active.
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
