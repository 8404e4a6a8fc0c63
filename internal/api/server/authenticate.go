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

	"berth/internal/connlimit"
)

const (
	// maxCached bounds each cache of reviews, in entries. An entry takes less than a kilobyte.
	maxCached = 4096
	// maxTokenReviews bounds concurrent token reviews: any client can cause them with invalid
	// tokens, and waiting requests must not exhaust the port. maxTokenReviewsEach is the share of
	// one remote address, which may stand for many clients.
	maxTokenReviews     = 64
	maxTokenReviewsEach = 16
	// reviewTimeout bounds one review by the API server. Clients give up earlier anyway.
	reviewTimeout = 10 * time.Second
)

// Authentication configures the authentication of the HTTPS port (KubeletConfiguration,
// authentication).
type Authentication struct {
	// VerifyClient verifies a chain of client certificates, the client's own first; nil: client
	// certificates are ignored.
	VerifyClient func(chain []*x509.Certificate) error
	// Tokens reviews bearer tokens; nil: tokens are ignored.
	Tokens TokenReviewer
	// TokenTTL is how long a token review is cached (webhook.cacheTTL); 0: two minutes.
	TokenTTL time.Duration
	// Anonymous accepts requests without credentials as system:anonymous.
	Anonymous bool
}

// TokenReviewer reviews tokens at the API server.
type TokenReviewer interface {
	CreateTokenReview(ctx context.Context, t *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error)
}

// The API server's names for authenticated and anonymous users.
const (
	anonymousName        = "system:anonymous"
	unauthenticatedGroup = "system:unauthenticated"
	authenticatedGroup   = "system:authenticated"
)

type authenticator struct {
	Authentication
	log      *slog.Logger
	secret   [32]byte // salts the hashes of cached tokens, so that they cannot be looked up in a table
	inflight singleflight.Group
	waiting  *sharedLimiter

	// Reviews of valid and invalid tokens are cached separately: clients can send any number of
	// invalid tokens, which must not displace valid ones.
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
	// errUnknown is returned for a token that the API server does not accept.
	errUnknown = errors.New("the token is not valid")
	// errManyReviews and errNotReviewed are returned if a token could not be reviewed.
	errManyReviews = errors.New("too many bearer tokens are being reviewed")
	errNotReviewed = errors.New("the API server cannot be asked whose the bearer token is")
)

// authenticate returns the user of the request, or why it is not authenticated. An invalid
// certificate or token is an error even if anonymous requests are accepted.
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

// byCertificate returns the user of the common name and the groups of the organizations.
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

// byToken reviews the token at the API server, once for concurrent requests and again when the
// cached review has expired. Failed reviews are not cached. No token is rejected for its format:
// authenticators accept any text, and invalid tokens can have any format.
func (a *authenticator) byToken(r *http.Request, token string) (authenticationv1.UserInfo, error) {
	key := sha256.Sum256(append(a.secret[:], token...))
	for _, answers := range []*cache.LRUExpireCache{a.good, a.bad} {
		if v, ok := answers.Get(key); ok {
			return userOf(v.(authenticationv1.TokenReviewStatus))
		}
	}
	from := connlimit.Origin(r.RemoteAddr)
	if !a.waiting.enter(from) {
		return authenticationv1.UserInfo{}, errManyReviews
	}
	defer a.waiting.leave(from)
	v, err, _ := a.inflight.Do(string(key[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), reviewTimeout) // shared by several requests
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

func authenticated(u authenticationv1.UserInfo) authenticationv1.UserInfo {
	if !slices.Contains(u.Groups, authenticatedGroup) {
		u.Groups = append(slices.Clone(u.Groups), authenticatedGroup)
	}
	return u
}
