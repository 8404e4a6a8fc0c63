package kubetest

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Request is the server's record of one request.
type Request struct {
	Time time.Time
	// Verb is get, list, watch, create, update, patch or delete; empty if the path is not known.
	Verb, Resource, Subresource, Namespace, Name string
	Method, Path                                 string
	Query                                        url.Values
	ContentType, UserAgent, Authorization        string
	Body                                         []byte
	// Code is the status of the answer; 0 before the answer, or if the connection was dropped
	// instead.
	Code int
}

// Fault makes requests fail. Empty fields match every request.
type Fault struct {
	Verb, Resource, Subresource, Namespace, Name string
	// Times is the number of affected requests; 0 means all until Heal.
	Times int
	Then  Effect
}

// Effect is the effect of a fault on a request.
type Effect func(e *exchange, serve func() error) error

// Answer returns an error and does nothing else.
func Answer(code int, reason metav1.StatusReason, message string) Effect {
	return func(*exchange, func() error) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message}}
	}
}

// Busy answers 429 with a Retry-After of whole seconds, and does nothing. Clients retry by
// themselves.
func Busy(retryAfter time.Duration) Effect {
	return func(*exchange, func() error) error {
		return apierrors.NewTooManyRequests("the server is busy", int(retryAfter/time.Second))
	}
}

// Hang does nothing and never answers.
func Hang() Effect {
	return func(e *exchange, _ func() error) error {
		<-e.response.r.Context().Done()
		panic(http.ErrAbortHandler)
	}
}

// Drop does nothing and closes the connection.
func Drop() Effect {
	return func(*exchange, func() error) error { panic(http.ErrAbortHandler) }
}

// LoseAnswer serves the request and closes the connection instead of answering.
func LoseAnswer() Effect {
	return func(e *exchange, serve func() error) error {
		e.response.lost = true
		return serve()
	}
}

// Delay delays the request.
func Delay(d time.Duration) Effect {
	return func(e *exchange, serve func() error) error {
		wait(e.response.r.Context(), d)
		return serve()
	}
}

// Inject adds a fault. If several match a request, the first one applies.
func (s *Server) Inject(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &f)
}

// Heal removes all faults.
func (s *Server) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// suffer serves the request, with the first matching fault.
func (e *exchange) suffer(serve func() error) error {
	e.server.mu.Lock()
	var then Effect
	for i, f := range e.server.faults {
		if !f.matches(e.request) {
			continue
		}
		then = f.Then
		if f.Times == 1 {
			e.server.faults = slices.Delete(e.server.faults, i, i+1)
		} else if f.Times > 1 {
			f.Times--
		}
		break
	}
	e.server.mu.Unlock()
	if then == nil {
		return serve()
	}
	return then(e, serve)
}

func (f *Fault) matches(q *Request) bool {
	for _, m := range []struct{ want, have string }{
		{f.Verb, q.Verb}, {f.Resource, q.Resource}, {f.Subresource, q.Subresource}, {f.Namespace, q.Namespace}, {f.Name, q.Name},
	} {
		if m.want != "" && m.want != m.have {
			return false
		}
	}
	return true
}

// Stop makes the server unreachable: it refuses connections and closes open ones. Its objects are
// retained.
func (s *Server) Stop() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.BreakWatches()
}

// Start makes a stopped server reachable again.
func (s *Server) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = false
}

func (s *Server) isStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped
}

// BreakWatches drops the connections of all watches.
func (s *Server) BreakWatches() { s.endWatches(dropped) }

// ExpireWatches ends all watches with the error 410 Gone.
func (s *Server) ExpireWatches() { s.endWatches(expired) }

// Compact drops the history: a watch from an older version gets 410 Gone. Open watches continue.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compact = s.version
	for _, t := range s.tables {
		t.history = nil
	}
}

// Snapshot saves all objects. The returned function restores them, like the restore of an older
// etcd: later writes are undone, versions are reused, and all watches are dropped.
func (s *Server) Snapshot() (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	version, objects := s.version, map[*kind]map[types.NamespacedName]object{}
	for k, t := range s.tables {
		objects[k] = maps.Clone(t.objects)
	}
	return func() {
		s.mu.Lock()
		s.version, s.compact = version, version
		for k, t := range s.tables {
			t.objects, t.history = maps.Clone(objects[k]), nil
		}
		s.mu.Unlock()
		s.BreakWatches()
	}
}

// Requests returns the requests so far, oldest first.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Request, 0, len(s.requests))
	for _, q := range s.requests {
		out = append(out, *q)
	}
	return out
}

// ForgetRequests clears the list of requests.
func (s *Server) ForgetRequests() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
}

// Count returns the number of requests with a verb on a resource, written "pods" or "pods/status".
func (s *Server) Count(verb, resource string) int {
	n := 0
	for _, q := range s.Requests() {
		name := q.Resource
		if q.Subresource != "" {
			name += "/" + q.Subresource
		}
		if q.Verb == verb && name == resource {
			n++
		}
	}
	return n
}

// Watchers returns the number of open watches of a resource.
func (s *Server) Watchers(resource string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for k, t := range s.tables {
		if k.plural == resource {
			n += len(t.watchers)
		}
	}
	return n
}

func (s *Server) log(q *Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, q)
}

func (r *response) noteCode(code int) {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	r.request.Code = code
}
