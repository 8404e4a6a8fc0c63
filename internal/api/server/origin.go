package server

import "sync"

// sharedLimiter is a limiter with a maximum share per origin, so that one origin cannot exhaust it.
type sharedLimiter struct {
	limit, share int

	mu         sync.Mutex
	inProgress map[string]int // by origin; no entries of 0
	all        int
}

func newSharedLimiter(limit, share int) *sharedLimiter {
	return &sharedLimiter{limit: limit, share: share, inProgress: map[string]int{}}
}

func (l *sharedLimiter) enter(origin string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= l.limit || l.inProgress[origin] >= l.share {
		return false
	}
	l.all++
	l.inProgress[origin]++
	return true
}

func (l *sharedLimiter) leave(origin string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.inProgress[origin]--; l.inProgress[origin] == 0 {
		delete(l.inProgress, origin)
	}
}
