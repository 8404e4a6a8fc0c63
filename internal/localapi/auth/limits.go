package auth

import "sync"

// limits count the requests of each user that are under way, so that one client cannot starve the
// agent or other clients.
type limits struct {
	most [2]int // by span

	mu    sync.Mutex
	under map[string]*[2]int // guarded by mu; of each user, by span
}

func newLimits(ofShort, ofLong int) *limits {
	return &limits{most: [2]int{short: ofShort, long: ofLong}, under: map[string]*[2]int{}}
}

// span is whether a request ends by itself.
type span int

const (
	short span = iota
	long       // goes on until its client ends it
)

// begin counts a request; it is not to be served if there are too many. done ends it. Whoever acts
// for others is counted as himself.
func (l *limits) begin(u *User, s span) (done func(), ok bool) {
	for u.By != nil {
		u = u.By
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.under[u.Name]
	if n == nil {
		n = &[2]int{}
		l.under[u.Name] = n
	}
	if n[s] >= l.most[s] {
		return nil, false
	}
	n[s]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if n[s]--; *n == [2]int{} {
			delete(l.under, u.Name)
		}
	}, true
}
