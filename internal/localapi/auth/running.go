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

// running are the long-running requests in progress. A request is ended when its authorization is
// withdrawn: the rule, the validity of its token or certificate, or an object that the token is
// bound to. The client gets the reason when it reconnects.
//
// Differs from kube-apiserver: there, such a request lasts as long as a watch, an hour at most, or
// indefinitely, as an exec.
type running struct {
	mu  sync.Mutex
	all map[*run]struct{} // guarded by mu
}

type run struct {
	access *Access
	q      kinds.Request
	// original is the original request, with its credentials.
	original *http.Request
	end      context.CancelCauseFunc
	rec      *recorder

	mu    sync.Mutex
	ended bool        // guarded by mu
	bound []boundTo   // guarded by mu
	timer *time.Timer // guarded by mu; nil if the credentials do not expire
}

// endTimeout is how long an ended response may take to reach its client.
const endTimeout = 5 * time.Second

// errRevoked is the cause of an ended request.
var errRevoked = errors.New("what the request was allowed by is gone")

// originalRequest returns a copy of a request with its credentials.
func originalRequest(r *http.Request) *http.Request {
	c := r.WithContext(r.Context())
	c.Header = r.Header.Clone()
	c.Body = http.NoBody
	return c
}

// track registers a request until done is called. The context is cancelled when its authorization
// is withdrawn.
func (a *Access) track(original *http.Request, q kinds.Request, rec *recorder) (ctx context.Context, done func()) {
	ctx, end := context.WithCancelCause(original.Context())
	l := &run{access: a, q: q, original: original, end: end, rec: rec}
	a.running.mu.Lock()
	if a.running.all == nil {
		a.running.all = map[*run]struct{}{}
	}
	a.running.all[l] = struct{}{}
	a.running.mu.Unlock()
	l.recheck() // changes since the authorization were not reported
	return ctx, func() {
		a.running.mu.Lock()
		delete(a.running.all, l)
		a.running.mu.Unlock()
		l.stop()
		end(nil)
	}
}

func (r *running) list(matches func(*run) bool) []*run {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []*run
	for l := range r.all {
		if matches(l) {
			found = append(found, l)
		}
	}
	return found
}

func (a *Access) recheckAll() {
	for _, l := range a.running.list(func(*run) bool { return true }) {
		l.recheck()
	}
}

// Changed must be called for each change of an object. It ends the requests with tokens bound to an
// object that was deleted. The resource is the plural.
func (a *Access) Changed(resource, namespace, name string) {
	if !slices.Contains(bindable, resource) {
		return
	}
	for _, l := range a.running.list(func(l *run) bool { return l.isBoundTo(resource, namespace, name) }) {
		l.recheck()
	}
}

// Overlooked must be called when changes of objects may have been missed.
func (a *Access) Overlooked() { a.recheckAll() }

func (l *run) isBoundTo(resource, namespace, name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.bound, func(b boundTo) bool { return b.plural == resource && b.namespace == namespace && b.Name == name })
}

// recheck authenticates and authorizes the request again, and ends it if it would be rejected now.
// If that cannot be determined, the request continues.
func (l *run) recheck() {
	a := l.access
	client, err := a.authenticate(l.original)
	u := client
	if err == nil {
		u, err = a.impersonate(client, l.original.Header)
	}
	if err == nil {
		err = a.authorize(u, l.q, l.original)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var token errToken
	switch {
	case l.ended:
	case err == nil:
		l.bound = client.bound
		l.schedule(client.until)
	case errors.Is(err, errUnknown), errors.As(err, &token), apierrors.IsForbidden(err):
		l.ended = true
		a.cfg.Log.Info("a request of the local API is ended, as its client may no longer", "verb", l.q.Verb, "path", bounded(l.q.Path), "error", err)
		l.end(errRevoked)
		l.rec.endBy(time.Now().Add(endTimeout))
	default:
		a.cfg.Log.Warn("Cannot re-authorize a long-running request", "verb", l.q.Verb, "path", bounded(l.q.Path), "error", err)
	}
}

// schedule schedules a recheck after the given time. mu is held.
func (l *run) schedule(until time.Time) {
	if l.timer != nil {
		l.timer.Stop()
	}
	if !until.IsZero() {
		l.timer = time.AfterFunc(time.Until(until)+time.Millisecond, l.recheck) // at that time it is still valid
	}
}

func (l *run) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	if l.timer != nil {
		l.timer.Stop()
	}
}

// Run ends requests whose authorization is withdrawn by a change of the rules file, until the
// context is done.
func (a *Access) Run(ctx context.Context) error {
	return a.cfg.Rules.watch(ctx, a.cfg.Watch, a.recheckAll)
}
