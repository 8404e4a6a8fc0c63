package objects

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/pod"
)

const (
	// defaultTokenSeconds is the API's default of ServiceAccountTokenProjection.expirationSeconds.
	defaultTokenSeconds = 3600
	// maxTokenAge limits the age of any token.
	maxTokenAge = 24 * time.Hour
	// maxTokenJitter spreads renewals; each token gets a random number of whole seconds.
	maxTokenJitter = 10 * time.Second
	// renewRetry is the delay of a retry of a renewal.
	renewRetry = time.Minute
)

type tokenKey struct {
	pod            pod.UID
	namespace      string
	serviceAccount string
	accountUID     types.UID // the account must have this UID; "": any
	audience       string
	seconds        int64
	quiet          bool // the pod is not notified when the token is due for renewal
}

// String returns a description of the token for errors, which is not secret.
func (k tokenKey) String() string {
	return fmt.Sprintf("of service account %s/%s for audience %q and pod %s", k.namespace, k.serviceAccount, k.audience, k.pod)
}

// token is an issued token; it is immutable. Its age counts from the request, independently of
// clock changes and the server's clock.
//
// Differs from the kubelet: it compares the server's time with that of the node.
type token struct {
	value   string
	expires time.Time // by the server's clock
	renew   time.Time // when a new one is requested; zero: never
	ends    time.Time // from then on it is not returned; set with renew
}

// tokens caches the tokens of this node's pods.
type tokens struct {
	create  func(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	changed *pod.Inbox[pod.UID]
	issued  *pod.Inbox[struct{}] // there is another renewal to wait for
	log     *slog.Logger

	mu    sync.Mutex
	cache map[tokenKey]token     // guarded by mu
	wake  map[tokenKey]time.Time // guarded by mu; when the pod of a token is notified of its renewal, or a quiet token is dropped
}

func newTokens(create func(context.Context, string, string, *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error),
	changed *pod.Inbox[pod.UID], log *slog.Logger,
) *tokens {
	return &tokens{
		create: create, changed: changed, issued: pod.NewInbox[struct{}](), log: log,
		cache: map[tokenKey]token{}, wake: map[tokenKey]time.Time{},
	}
}

// issuer requests tokens from the API server.
type issuer struct {
	api       API
	discovery DiscoveryAPI // nil: not called
}

// create requests a token. A server without tokens answers NotFound, as for a missing service
// account.
func (i issuer) create(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	issued, err := i.api.CreateToken(ctx, namespace, serviceAccount, request)
	if i.discovery != nil && apierrors.IsNotFound(err) {
		if serves, failed := i.discovery.ServesTokens(ctx); failed == nil && !serves {
			return nil, errors.New("the API server does not have TokenRequest endpoints enabled")
		}
	}
	return issued, err
}

// get returns a token for a volume.
func (t *tokens) get(ctx context.Context, p *v1.Pod, src *v1.ServiceAccountTokenProjection) (string, error) {
	k := tokenKey{pod: p.UID, namespace: p.Namespace, serviceAccount: p.Spec.ServiceAccountName, audience: src.Audience, seconds: defaultTokenSeconds}
	if src.ExpirationSeconds != nil {
		k.seconds = *src.ExpirationSeconds
	}
	return t.getFor(ctx, p, k)
}

// getFor returns the cached token, or a new one if there is none or its renewal is due. While
// renewals fail, the old token is returned until it expires.
func (t *tokens) getFor(ctx context.Context, p *v1.Pod, k tokenKey) (string, error) {
	issued, err := t.tokenFor(ctx, p, k)
	return issued.value, err
}

func (t *tokens) tokenFor(ctx context.Context, p *v1.Pod, k tokenKey) (token, error) {
	t.mu.Lock()
	old, cached := t.cache[k]
	t.mu.Unlock()
	asked := time.Now()
	if cached && (old.renew.IsZero() || !reached(old.renew, asked)) {
		return old, nil
	}
	issued, err := t.create(ctx, k.namespace, k.serviceAccount, tokenRequest(p, k))
	if err != nil {
		switch {
		case !cached:
			return token{}, fmt.Errorf("failed to fetch token: %w", err)
		case !time.Now().Before(old.ends):
			return token{}, fmt.Errorf("token %s expired and refresh failed: %w", k, err)
		}
		t.log.Warn("token not renewed, the old one is kept", "token", k.String(), "expires", old.expires, "error", err)
		return old, nil
	}
	fresh := token{value: issued.Status.Token, expires: issued.Status.ExpirationTimestamp.Time}
	// The server may have granted another lifetime than requested, and returns it.
	if seconds := issued.Spec.ExpirationSeconds; seconds != nil {
		life := time.Duration(*seconds) * time.Second
		jitter := time.Duration(rand.N(int64(maxTokenJitter/time.Second)+1)) * time.Second
		fresh.renew, fresh.ends = asked.Add(computeRenewal(life, jitter)), asked.Add(life)
	}
	t.mu.Lock()
	t.cache[k] = fresh
	switch {
	case fresh.renew.IsZero():
		delete(t.wake, k)
	case k.quiet:
		t.wake[k] = fresh.ends
	default:
		t.wake[k] = fresh.renew
	}
	t.mu.Unlock()
	t.issued.Put(struct{}{})
	return fresh, nil
}

func tokenRequest(p *v1.Pod, k tokenKey) *authenticationv1.TokenRequest {
	// The server rejects a request for an account with another UID.
	r := &authenticationv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{UID: k.accountUID}, Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &k.seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID},
	}}
	if k.audience != "" {
		r.Spec.Audiences = []string{k.audience}
	}
	return r
}

// computeRenewal returns the age at which a token of this lifetime is renewed: when a fifth of its
// life is left, at most a day, both less the jitter.
func computeRenewal(life, jitter time.Duration) time.Duration {
	return min(life-life/5, maxTokenAge) - jitter
}

// reached reports whether a time that this process computed has passed. After a suspend only the
// wall clock is right, and after that was set back only the monotonic one.
func reached(at, now time.Time) bool { return !now.Before(at) || !now.Round(0).Before(at) }

// run notifies the pods of tokens that are due for renewal, and drops expired tokens; the pods
// retry failed renewals.
func (t *tokens) run(ctx context.Context) {
	timer := time.NewTimer(maxTokenAge)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.issued.Wake():
			t.issued.Take()
		case <-timer.C:
		}
		if next := t.notifyDue(time.Now()); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
	}
}

// notifyDue notifies the pods of the tokens that are due, and returns the time of the next one;
// zero for never.
func (t *tokens) notifyDue(now time.Time) (next time.Time) {
	var due []pod.UID
	t.mu.Lock()
	for k, at := range t.wake {
		if !at.After(now) {
			if !k.quiet {
				due = append(due, k.pod)
			}
			if !now.Before(t.cache[k].ends) {
				delete(t.cache, k)
				delete(t.wake, k)
				continue
			}
			at = now.Add(renewRetry)
			t.wake[k] = at
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	t.mu.Unlock()
	for _, uid := range due {
		t.changed.Put(uid)
	}
	return next
}

// forget drops the pod's tokens.
func (t *tokens) forget(uid pod.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.cache {
		if k.pod == uid {
			delete(t.cache, k)
			delete(t.wake, k)
		}
	}
}
