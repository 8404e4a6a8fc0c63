package images

import (
	"sync"
	"time"

	"berth/internal/pod"
)

const (
	backOffBase   = 10 * time.Second
	backOffCap    = 300 * time.Second
	backOffExpiry = 600 * time.Second // after the last use
)

type backOffKey struct {
	uid   pod.UID
	image string
}

type backOffEntry struct {
	delay    time.Duration
	until    time.Time
	lastUsed time.Time
	cause    *Error // of the last failed pull
}

// backOff holds back pulls that failed. An entry is forgotten when it was not used for backOffExpiry, not when a pull
// succeeds: a registry that answers every other time is still a bad registry.
type backOff struct {
	mu      sync.Mutex
	entries map[backOffKey]backOffEntry // guarded by mu
}

// check returns the end of the running back-off and the failure that began it, or false when a pull may be tried.
func (b *backOff) check(key backOffKey, now time.Time) (backOffEntry, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.entries[key]
	if !ok || e.expired(now) || !now.Before(e.until) {
		return backOffEntry{}, false
	}
	e.lastUsed = now
	b.entries[key] = e
	return e, true
}

// fail notes a failed pull and returns when the next one is allowed. Failures of one pull that several containers of a pod
// waited for count once: the first of them opens a back-off, and the others find it open.
func (b *backOff) fail(key backOffKey, cause *Error, now time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, e := range b.entries {
		if e.expired(now) {
			delete(b.entries, k)
		}
	}
	e := b.entries[key]
	if now.Before(e.until) {
		return e.until
	}
	e = backOffEntry{delay: nextDelay(e.delay), lastUsed: now, cause: cause}
	e.until = now.Add(e.delay)
	b.entries[key] = e
	return e.until
}

func (e backOffEntry) expired(now time.Time) bool { return now.Sub(e.lastUsed) > backOffExpiry }

func nextDelay(last time.Duration) time.Duration {
	return min(max(2*last, backOffBase), backOffCap)
}
