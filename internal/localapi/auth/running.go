package auth

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"berth/internal/localapi/kinds"
)

// running are the requests under way that go on until their client ends them. What lets one in may
// go while it runs: the rule by which it may, the time of its token or its certificate, an object
// that the token is bound to. Then it is ended, and its client, if it comes again, is told why.
//
// Differs from kube-apiserver: there, such a request goes on for as long as a watch lasts, which is
// an hour at most, or for ever, as an exec.
type running struct {
	mu  sync.Mutex
	all map[*run]struct{} // guarded by mu
}

// run is one of them.
type run struct {
	access *Access
	q      kinds.Request
	// asked is the request as it came, with what it has shown.
	asked *http.Request
	end   context.CancelCauseFunc
	rec   *recorder

	mu    sync.Mutex
	over  bool        // guarded by mu
	bound []boundTo   // guarded by mu
	timer *time.Timer // guarded by mu; nil if it may go on for ever
}

// lastWords is how long an answer that is ended may take to reach its client.
const lastWords = 5 * time.Second

// errRevoked is why a request is ended.
var errRevoked = errors.New("what the request was allowed by is gone")

// asCame is a copy of a request that keeps what it shows of its client.
func asCame(r *http.Request) *http.Request {
	c := r.WithContext(r.Context())
	c.Header = r.Header.Clone()
	c.Body = http.NoBody
	return c
}

// keep remembers a request while it runs. The context ends with its right. done forgets it.
func (a *Access) keep(asked *http.Request, q kinds.Request, rec *recorder) (ctx context.Context, done func()) {
	ctx, end := context.WithCancelCause(asked.Context())
	l := &run{access: a, q: q, asked: asked, end: end, rec: rec}
	a.running.mu.Lock()
	if a.running.all == nil {
		a.running.all = map[*run]struct{}{}
	}
	a.running.all[l] = struct{}{}
	a.running.mu.Unlock()
	l.recheck() // what has changed since it was let in, nobody has told it
	return ctx, func() {
		a.running.mu.Lock()
		delete(a.running.all, l)
		a.running.mu.Unlock()
		l.stop()
		end(nil)
	}
}

// list returns those of which what is true.
func (r *running) list(what func(*run) bool) []*run {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []*run
	for l := range r.all {
		if what(l) {
			found = append(found, l)
		}
	}
	return found
}

// recheckAll ends the requests that may no longer be.
func (a *Access) recheckAll() {
	for _, l := range a.running.list(func(*run) bool { return true }) {
		l.recheck()
	}
}

// Changed is to be told of each change of an object: it ends the requests of tokens that were bound
// to one that has gone. The resource is the plural.
func (a *Access) Changed(resource, namespace, name string) {
	if !slices.Contains(bindable, resource) {
		return
	}
	for _, l := range a.running.list(func(l *run) bool { return l.isBoundTo(resource, namespace, name) }) {
		l.recheck()
	}
}

// Overlooked is to be told when changes of objects may have been missed.
func (a *Access) Overlooked() { a.recheckAll() }

func (l *run) isBoundTo(resource, namespace, name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.bound, func(b boundTo) bool { return b.plural == resource && b.namespace == namespace && b.Name == name })
}

// recheck decides again, as on a request that comes now, and ends this one if it would be refused.
// If nobody can tell, it goes on.
func (l *run) recheck() {
	a := l.access
	shown, err := a.authenticate(l.asked)
	u := shown
	if err == nil {
		u, err = a.impersonate(shown, l.asked.Header)
	}
	if err == nil {
		err = a.authorize(u, l.q, l.asked)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var token errToken
	switch {
	case l.over:
	case err == nil:
		l.bound = shown.bound
		l.schedule(shown.until)
	case errors.Is(err, errUnknown), errors.As(err, &token), apierrors.IsForbidden(err):
		l.over = true
		a.cfg.Log.Info("a request of the local API is ended, as its client may no longer", "verb", l.q.Verb, "path", bounded(l.q.Path), "error", err)
		l.end(errRevoked)
		l.rec.endBy(time.Now().Add(lastWords))
	default:
		a.cfg.Log.Warn("Cannot re-authorize a long-running request", "verb", l.q.Verb, "path", bounded(l.q.Path), "error", err)
	}
}

// schedule has the request looked at again after the time given. mu is held.
func (l *run) schedule(until time.Time) {
	if l.timer != nil {
		l.timer.Stop()
	}
	if !until.IsZero() {
		l.timer = time.AfterFunc(time.Until(until)+time.Millisecond, l.recheck) // at that very time it holds
	}
}

// stop forgets what there was to come.
func (l *run) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	if l.timer != nil {
		l.timer.Stop()
	}
}

// Run ends requests whose rights go with a change of the file of rules, until the context is done.
func (a *Access) Run(ctx context.Context) error {
	return a.cfg.Rules.watch(ctx, a.cfg.Watch, a.recheckAll)
}
