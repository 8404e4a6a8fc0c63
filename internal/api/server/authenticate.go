package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/util/cache"
)

const (
	// maxCached bounds each cache of the API server's answers, in answers. An answer takes less
	// than a kilobyte.
	maxCached = 4096
	// maxTokenReviews bounds the questions about tokens at a time: with made-up tokens anybody can
	// cause them, and those who wait must not fill the port. maxTokenReviewsEach is the share of
	// one remote address, which may stand for many clients.
	maxTokenReviews     = 64
	maxTokenReviewsEach = 16
	// reviewTimeout bounds one question to the API server. Whoever waits longer for an answer gives
	// up anyway.
	reviewTimeout = 10 * time.Second
)

// Authentication says whom the HTTPS port believes (KubeletConfiguration, authentication).
type Authentication struct {
	// VerifyClient says whether a chain of client certificates, the client's own first, is good;
	// nil: client certificates say nothing.
	VerifyClient func(chain []*x509.Certificate) error
	// Tokens asks whose a bearer token is; nil: tokens say nothing.
	Tokens TokenReviewer
	// TokenTTL is how long an answer about a token holds (webhook.cacheTTL); 0: two minutes.
	TokenTTL time.Duration
	// Anonymous lets in those who show nothing, as system:anonymous.
	Anonymous bool
}

// TokenReviewer asks the API server whose a token is.
type TokenReviewer interface {
	CreateTokenReview(ctx context.Context, t *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error)
}

// The names of the API server for those that it knows and does not know.
const (
	anonymousName        = "system:anonymous"
	unauthenticatedGroup = "system:unauthenticated"
	authenticatedGroup   = "system:authenticated"
)

// authenticator finds out who sends a request.
type authenticator struct {
	Authentication
	log      *slog.Logger
	secret   [32]byte // tokens are stored as hashes only, which a reader of this memory cannot find in a table
	inflight singleflight.Group
	waiting  *sharedLimiter

	// The answers about tokens, apart from each other: of bad tokens there are as many as anybody
	// likes, and they must not take the place of good ones.
	good, bad *cache.LRUExpireCache
}

func newAuthenticator(a Authentication, log *slog.Logger) (*authenticator, error) {
	if a.TokenTTL < 0 {
		return nil, fmt.Errorf("authentication.webhook.cacheTTL %v: must not be negative", a.TokenTTL)
	}
	if a.TokenTTL == 0 {
		a.TokenTTL = 2 * time.Minute
	}
	authn := &authenticator{
		Authentication: a, log: log, waiting: newSharedLimiter(maxTokenReviews, maxTokenReviewsEach),
		good: cache.NewLRUExpireCache(maxCached), bad: cache.NewLRUExpireCache(maxCached),
	}
	if _, err := rand.Read(authn.secret[:]); err != nil {
		return nil, err
	}
	return authn, nil
}

var (
	// errUnknown says that what was shown is not known to the API server.
	errUnknown = errors.New("the token is not valid")
	// errManyReviews and errNotReviewed say that nobody knows yet whether a token is good.
	errManyReviews = errors.New("too many bearer tokens are being reviewed")
	errNotReviewed = errors.New("the API server cannot be asked whose the bearer token is")
)

// authenticate returns who sends the request, or why nobody is believed to. A certificate or token
// that is not good is an error also where anonymous requests are let in.
func (a *authenticator) authenticate(r *http.Request) (authenticationv1.UserInfo, error) {
	var errs []error
	if a.VerifyClient != nil && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		u, err := a.byCertificate(r.TLS.PeerCertificates)
		if err == nil {
			return u, nil
		}
		errs = append(errs, err)
	}
	if token := bearer(r.Header); token != "" && a.Tokens != nil {
		u, err := a.byToken(r, token)
		if err == nil {
			return u, nil
		}
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return authenticationv1.UserInfo{}, errors.Join(errs...)
	}
	if !a.Anonymous {
		return authenticationv1.UserInfo{}, errors.New("neither a client certificate nor a bearer token")
	}
	return authenticationv1.UserInfo{Username: anonymousName, Groups: []string{unauthenticatedGroup}}, nil
}

// byCertificate takes the user from the common name and the groups from the organizations.
func (a *authenticator) byCertificate(chain []*x509.Certificate) (authenticationv1.UserInfo, error) {
	if err := a.VerifyClient(chain); err != nil {
		return authenticationv1.UserInfo{}, err
	}
	subject := chain[0].Subject
	if subject.CommonName == "" {
		return authenticationv1.UserInfo{}, errors.New("the client certificate has no common name")
	}
	return authenticated(authenticationv1.UserInfo{Username: subject.CommonName, Groups: subject.Organization}), nil
}

// bearer returns the token of the request, or "".
func bearer(h http.Header) string {
	scheme, token, _ := strings.Cut(strings.TrimSpace(h.Get("Authorization")), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// byToken asks the API server, once for all requests with the token and again when the answer is
// too old. What could not be asked is asked again. No token is refused for its form: to the
// authenticators of a cluster a token is any text, and whoever makes tokens up can give them any
// form.
func (a *authenticator) byToken(r *http.Request, token string) (authenticationv1.UserInfo, error) {
	key := sha256.Sum256(append(a.secret[:], token...))
	for _, answers := range []*cache.LRUExpireCache{a.good, a.bad} {
		if v, ok := answers.Get(key); ok {
			return userOf(v.(authenticationv1.TokenReviewStatus))
		}
	}
	from := computeOrigin(r.RemoteAddr)
	if !a.waiting.enter(from) {
		return authenticationv1.UserInfo{}, errManyReviews
	}
	defer a.waiting.leave(from)
	v, err, _ := a.inflight.Do(string(key[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), reviewTimeout) // it is not one request's alone
		defer cancel()
		review, err := a.Tokens.CreateTokenReview(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}})
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errNotReviewed, err)
		}
		answers := a.bad
		if review.Status.Authenticated {
			answers = a.good
		}
		answers.Add(key, review.Status, a.TokenTTL)
		return review.Status, nil
	})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return userOf(v.(authenticationv1.TokenReviewStatus))
}

func userOf(s authenticationv1.TokenReviewStatus) (authenticationv1.UserInfo, error) {
	if !s.Authenticated {
		return authenticationv1.UserInfo{}, errUnknown
	}
	return authenticated(s.User), nil
}

// authenticated returns the user with the group of all whom somebody vouched for.
func authenticated(u authenticationv1.UserInfo) authenticationv1.UserInfo {
	if !slices.Contains(u.Groups, authenticatedGroup) {
		u.Groups = append(slices.Clone(u.Groups), authenticatedGroup)
	}
	return u
}
