package auth

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/api/nodeauthz"
	"berth/internal/connlimit"
	"berth/internal/localapi/kinds"
)

// Config configures Access.
type Config struct {
	Authority *Authority
	Tokens    *Tokens
	Rules     *RulesFile
	Objects   Objects
	// Watch opens a watcher of the rules file; nil is inotify.
	Watch func() (Watcher, error)
	Log   *slog.Logger
	// MaxRequests and MaxWatches are the maximum numbers of concurrent short and long-running
	// requests (watches, followed logs, exec) of a user. 0 is 64 and 512.
	MaxRequests, MaxWatches int
	// ReadOnly, if not "", is why all changes of objects are rejected, whatever the rules allow.
	ReadOnly string
}

// Access authenticates, authorizes and rate-limits requests to the local API.
type Access struct {
	cfg     Config
	limits  *limits
	refused *refusals
	running running
}

// New returns an Access.
func New(cfg Config) *Access {
	if cfg.MaxRequests == 0 {
		cfg.MaxRequests = 64
	}
	if cfg.MaxWatches == 0 {
		cfg.MaxWatches = 512
	}
	if cfg.Watch == nil {
		cfg.Watch = openInotify
	}
	return &Access{cfg: cfg, limits: newLimits(cfg.MaxRequests, cfg.MaxWatches), refused: &refusals{}}
}

// Health reports errors of the certificates and the rules file.
func (a *Access) Health() error {
	return errors.Join(a.cfg.Authority.Health(), a.cfg.Rules.Health())
}

const (
	// maxBody is the maximum size of a body, in bytes, as in kube-apiserver.
	maxBody = 3 << 20
	// bodyTime is how long a client may take to send a body.
	bodyTime = time.Minute
)

// Bound sets the limits of an HTTP server of the local API: size and time of headers, and streams
// per connection.
func Bound(s *http.Server) {
	s.ReadHeaderTimeout = 10 * time.Second
	s.IdleTimeout = 90 * time.Second
	s.MaxHeaderBytes = 64 << 10
	s.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 100}
	s.DisableGeneralOptionsHandler = true
}

// Maximum numbers of open connections of the port: in all, and of unauthenticated clients.
const (
	maxConnections     = 1024
	maxUnauthenticated = 256
)

// Bounded returns a listener with a bounded number of open connections, so that a silent or slow
// client does not block others.
func Bounded(l net.Listener) net.Listener {
	return limitConnections(l, maxConnections, maxUnauthenticated)
}

func limitConnections(l net.Listener, total, unauthenticated int) net.Listener {
	return connlimit.Listen(l, connlimit.Config{
		Total: total, Admitted: total, Unadmitted: unauthenticated,
		Origin: func(c net.Conn) any { return connlimit.Origin(c.RemoteAddr().String()) },
	})
}

// Handler passes authorized requests to next, with the user in the context (UserOf). It serves
// reviews, token requests and the OpenID documents itself.
func (a *Access) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := &recorder{ResponseWriter: w}
		t := &trail{start: time.Now(), q: readRequest(r), from: r.RemoteAddr}
		defer func() { a.audit(t, rec.code) }()
		a.serve(rec, r, t, next)
	})
}

func (a *Access) serve(w *recorder, r *http.Request, t *trail, next http.Handler) {
	a.readUntil(w, t.start.Add(bodyTime))
	u, err := a.authenticate(r)
	if err != nil {
		writeError(w, r, a.unauthorized(err))
		return
	}
	t.user = u
	defer connlimit.Begin(r.Context())()
	if u, err = a.impersonate(u, r.Header); err != nil {
		writeError(w, r, err)
		return
	}
	t.user = u
	duration := durationOf(t.q, r)
	var original *http.Request
	if duration == long {
		original = originalRequest(r)
	}
	strip(r.Header)
	if !isClean(r) {
		writeError(w, r, notFound())
		return
	}
	done, ok := a.limits.begin(u, duration)
	if !ok {
		w.Header().Set("Retry-After", "1")
		writeError(w, r, apierrors.NewTooManyRequests("Too many requests, please try again later.", 1))
		return
	}
	defer done()
	if err := a.authorize(u, t.q, r); err != nil {
		writeError(w, r, err)
		return
	}
	if r.ContentLength > maxBody {
		writeError(w, r, tooLarge())
		return
	}
	ctx := r.Context()
	if duration == long {
		a.readUntil(w, time.Time{})
		var untrack func()
		ctx, untrack = a.track(original, t.q, w)
		defer untrack()
	}
	if r.Body != http.NoBody {
		r.Body = http.MaxBytesReader(w.ResponseWriter, r.Body, maxBody)
	}
	r = r.WithContext(WithUser(ctx, u))
	if h := a.handlerOf(t.q); h != nil {
		h(w, r)
		return
	}
	next.ServeHTTP(w, r)
}

// readUntil sets the deadline for reading the body; the zero time removes it.
func (a *Access) readUntil(w http.ResponseWriter, end time.Time) {
	// A writer without deadlines, as in a test, has no slow client.
	if err := http.NewResponseController(w).SetReadDeadline(end); err != nil && !errors.Is(err, http.ErrNotSupported) {
		a.cfg.Log.Debug("no deadline for a body", "error", err)
	}
}

// handlerOf returns the handler of a request that this package serves, nil for any other.
func (a *Access) handlerOf(q kinds.Request) http.HandlerFunc {
	switch {
	case isReview(q):
		return a.serveReview
	case q.GroupVersion == v1.SchemeGroupVersion && q.Resource == "serviceaccounts" && q.Subresource == "token":
		return a.serveToken
	case q.Path == openIDPath && q.Verb == "get":
		return document("application/json", a.cfg.Tokens.discovery)
	case q.Path == keysPath && q.Verb == "get":
		return document("application/jwk-set+json", a.cfg.Tokens.keys)
	}
	return nil
}

// document serves a document that clients may cache for an hour.
func document(mediaType string, content func() ([]byte, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, err := content()
		if err != nil {
			writeError(w, r, err)
			return
		}
		w.Header().Set("Content-Type", mediaType)
		w.Header().Set("Cache-Control", "public, max-age=3600")
		_, _ = w.Write(b) // a failed write means that the client has disconnected
	}
}

func (a *Access) unauthorized(err error) error {
	var token errToken
	if errors.Is(err, errUnknown) || errors.As(err, &token) {
		return apierrors.NewUnauthorized("Unauthorized")
	}
	return apierrors.NewInternalError(err)
}

// authorize does not read the body.
func (a *Access) authorize(u *User, q kinds.Request, r *http.Request) error {
	if reason, ok := a.allows(u, q); !ok && !a.allowsNodeAPI(u, q, r) {
		return forbidden(u, q, reason)
	}
	needs, err := a.needs(q, r)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("decide on %s %s: %w", q.Verb, q.Path, err))
	}
	for _, need := range needs[1:] {
		if reason, ok := a.allows(u, need); !ok {
			return forbidden(u, need, reason)
		}
	}
	return nil
}

// allows reports whether a user may make a request, with the rule that allows it, or why not if
// that is not for lack of a rule.
func (a *Access) allows(u *User, q kinds.Request) (reason string, ok bool) {
	if a.cfg.ReadOnly != "" && changesObjects(q) {
		return a.cfg.ReadOnly, false
	}
	return a.cfg.Rules.Rules().Allows(u, q)
}

// allowsNodeAPI reports whether a rule allows a request to the node API by a fine-grained
// subresource of the Node, such as nodes/metrics, which the node API accepts before nodes/proxy.
//
// Differs from kube-apiserver: it accepts only nodes/proxy, which allows every path.
func (a *Access) allowsNodeAPI(u *User, q kinds.Request, r *http.Request) bool {
	to, ok := kinds.ReadNodeProxy(r)
	if !ok {
		return false
	}
	attributes := nodeauthz.Compute(r.Method, to.Path)
	return attributes.Verb == q.Verb && slices.ContainsFunc(attributes.Subresources, func(subresource string) bool {
		q.Subresource = subresource
		_, ok := a.allows(u, q)
		return ok
	})
}

func notFound() error {
	err := failure(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
	err.ErrStatus.Details = &metav1.StatusDetails{}
	return err
}

func tooLarge() error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
}
