package auth

import "sync"

// limits counts the requests in progress of each user, so that one client cannot starve the agent
// or other clients.
type limits struct {
	most [2]int // by span

	mu         sync.Mutex
	inProgress map[string]*[2]int // guarded by mu; of each user, by span
}

func newLimits(ofShort, ofLong int) *limits {
	return &limits{most: [2]int{short: ofShort, long: ofLong}, inProgress: map[string]*[2]int{}}
}

// span is the class of a request's duration.
type span int

const (
	short span = iota
	long       // lasts until its client ends it
)

// begin counts a request until done is called; ok is false at the limit. An impersonated request
// counts for the impersonator.
func (l *limits) begin(u *User, s span) (done func(), ok bool) {
	for u.By != nil {
		u = u.By
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.inProgress[u.Name]
	if n == nil {
		n = &[2]int{}
		l.inProgress[u.Name] = n
	}
	if n[s] >= l.most[s] {
		return nil, false
	}
	n[s]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if n[s]--; *n == [2]int{} {
			delete(l.inProgress, u.Name)
		}
	}, true
}
