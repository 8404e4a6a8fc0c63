package auth

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/api/nodeauthz"
	"berth/internal/localapi/kinds"
)

// Config is what Access is made of.
type Config struct {
	Authority *Authority
	Tokens    *Tokens
	Rules     *RulesFile
	Objects   Objects
	// Watch opens what reports changes of the file of rules; nil is inotify.
	Watch func() (Watcher, error)
	Log   *slog.Logger
	// MaxRequests and MaxWatches are how many requests of one user may be under way, without and
	// with those that go on until the client ends them: watches, logs that are followed, exec. 0 is
	// 64 and 512.
	MaxRequests, MaxWatches int
	// ReadOnly is why nobody may change an object, whatever the rules say; "": they say who may.
	ReadOnly string
}

// Access is the door of the local API.
type Access struct {
	cfg     Config
	limits  *limits
	refused *refusals
	running running
}

// New returns the door.
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

// Health is what is wrong with the certificates or the file of rules.
func (a *Access) Health() error {
	return errors.Join(a.cfg.Authority.Health(), a.cfg.Rules.Health())
}

const (
	// maxBody is how large a body may be, in bytes, as kube-apiserver has it.
	maxBody = 3 << 20
	// bodyTime is how long a client may take to send it.
	bodyTime = time.Minute
)

// Bound sets the bounds of a server of the local API: of headers, of the time that they take, of
// streams of a connection.
func Bound(s *http.Server) {
	s.ReadHeaderTimeout = 10 * time.Second
	s.IdleTimeout = 90 * time.Second
	s.MaxHeaderBytes = 64 << 10
	s.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 100}
	s.DisableGeneralOptionsHandler = true
}

// Handler lets those requests come to next that may, with their user in the context (UserOf), and
// answers reviews, requests of tokens and the documents of tokens itself.
func (a *Access) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := &recorder{ResponseWriter: w}
		t := &trail{start: time.Now(), q: asks(r), from: r.RemoteAddr}
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
	defer beginRequest(r.Context())()
	if u, err = a.impersonate(u, r.Header); err != nil {
		writeError(w, r, err)
		return
	}
	t.user = u
	lasts := spanOf(t.q, r)
	var asked *http.Request
	if lasts == long {
		asked = asCame(r)
	}
	strip(r.Header)
	if !isClean(r) {
		writeError(w, r, notFound())
		return
	}
	done, ok := a.limits.begin(u, lasts)
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
	if lasts == long {
		a.readUntil(w, time.Time{})
		var over func()
		ctx, over = a.keep(asked, t.q, w)
		defer over()
	}
	if r.Body != http.NoBody {
		r.Body = http.MaxBytesReader(w.ResponseWriter, r.Body, maxBody)
	}
	r = r.WithContext(WithUser(ctx, u))
	if own := a.own(t.q); own != nil {
		own(w, r)
		return
	}
	next.ServeHTTP(w, r)
}

// readUntil bounds the time that a client may take to send its body; the zero time lifts the bound.
func (a *Access) readUntil(w http.ResponseWriter, end time.Time) {
	// What has no deadlines has nobody who is slow, as in a test.
	if err := http.NewResponseController(w).SetReadDeadline(end); err != nil && !errors.Is(err, http.ErrNotSupported) {
		a.cfg.Log.Debug("no deadline for a body", "error", err)
	}
}

// own returns what this package answers itself.
func (a *Access) own(q kinds.Request) http.HandlerFunc {
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

// document serves what others may keep for an hour.
func document(mediaType string, content func() ([]byte, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, err := content()
		if err != nil {
			writeError(w, r, err)
			return
		}
		w.Header().Set("Content-Type", mediaType)
		w.Header().Set("Cache-Control", "public, max-age=3600")
		_, _ = w.Write(b) // the client has gone
	}
}

// unauthorized is the answer to somebody who is not known, or may be and cannot be looked up.
func (a *Access) unauthorized(err error) error {
	var token errToken
	if errors.Is(err, errUnknown) || errors.As(err, &token) {
		return apierrors.NewUnauthorized("Unauthorized")
	}
	return apierrors.NewInternalError(err)
}

// authorize decides without reading the body.
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

// allows says whether a user may do what is asked, and why, or why not if there is a reason besides
// the rules.
func (a *Access) allows(u *User, q kinds.Request) (reason string, ok bool) {
	if a.cfg.ReadOnly != "" && changesObjects(q) {
		return a.cfg.ReadOnly, false
	}
	return a.cfg.Rules.Rules().Allows(u, q)
}

// allowsNodeAPI reports whether a rule allows a request to the node API by a finer subresource of
// the Node, such as nodes/metrics, which the node API accepts before nodes/proxy.
//
// Differs from kube-apiserver: it accepts nodes/proxy alone, which allows every path.
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

// notFound is the answer to a path that nothing is at.
func notFound() error {
	err := failure(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
	err.ErrStatus.Details = &metav1.StatusDetails{}
	return err
}

func tooLarge() error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
}
