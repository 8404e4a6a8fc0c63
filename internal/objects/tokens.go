package objects

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/pod"
)

const (
	// defaultTokenSeconds is the API's default of ServiceAccountTokenProjection.expirationSeconds.
	defaultTokenSeconds = 3600
	// maxTokenAge bounds how long any token is used.
	maxTokenAge = 24 * time.Hour
	// maxTokenJitter spreads renewals; whole seconds of it are drawn for each token.
	maxTokenJitter = 10 * time.Second
	// renewRetry is how soon a renewal is tried again.
	renewRetry = time.Minute
)

type tokenKey struct {
	pod            pod.UID
	namespace      string
	serviceAccount string
	accountUID     types.UID // the account must have it; "": any
	audience       string
	seconds        int64
	quiet          bool // the pod is not told when the token is to be renewed
}

// String names the token in errors; it is no secret.
func (k tokenKey) String() string {
	return fmt.Sprintf("of service account %s/%s for audience %q and pod %s", k.namespace, k.serviceAccount, k.audience, k.pod)
}

// token is what the server issued; it is never changed, only replaced.
type token struct {
	value   string
	renew   time.Time // from then on a new one is asked for; zero: never
	expires time.Time
}

// tokens are the tokens of this node's pods.
type tokens struct {
	create  func(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	changed *pod.Inbox[pod.UID]
	issued  *pod.Inbox[struct{}] // there is another renewal to wait for
	log     *slog.Logger

	mu    sync.Mutex
	cache map[tokenKey]token     // guarded by mu
	wake  map[tokenKey]time.Time // guarded by mu; when the pod of a token is to be told that it is to be renewed, and a quiet one to be dropped
}

func newTokens(create func(context.Context, string, string, *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error),
	changed *pod.Inbox[pod.UID], log *slog.Logger,
) *tokens {
	return &tokens{
		create: create, changed: changed, issued: pod.NewInbox[struct{}](), log: log,
		cache: map[tokenKey]token{}, wake: map[tokenKey]time.Time{},
	}
}

// get returns a token for a volume.
func (t *tokens) get(ctx context.Context, p *v1.Pod, src *v1.ServiceAccountTokenProjection) (string, error) {
	k := tokenKey{pod: p.UID, namespace: p.Namespace, serviceAccount: p.Spec.ServiceAccountName, audience: src.Audience, seconds: defaultTokenSeconds}
	if src.ExpirationSeconds != nil {
		k.seconds = *src.ExpirationSeconds
	}
	return t.getFor(ctx, p, k)
}

// getFor returns the cached token, or a new one when there is none or it is to be renewed. While a renewal fails, the old one serves until it
// expires.
func (t *tokens) getFor(ctx context.Context, p *v1.Pod, k tokenKey) (string, error) {
	issued, err := t.tokenFor(ctx, p, k)
	return issued.value, err
}

func (t *tokens) tokenFor(ctx context.Context, p *v1.Pod, k tokenKey) (token, error) {
	t.mu.Lock()
	old, cached := t.cache[k]
	t.mu.Unlock()
	if cached && (old.renew.IsZero() || time.Now().Before(old.renew)) {
		return old, nil
	}
	issued, err := t.create(ctx, k.namespace, k.serviceAccount, tokenRequest(p, k))
	if err != nil {
		switch {
		case !cached:
			return token{}, fmt.Errorf("failed to fetch token: %w", err)
		case !time.Now().Before(old.expires):
			return token{}, fmt.Errorf("token %s expired and refresh failed: %w", k, err)
		}
		t.log.Warn("token not renewed, the old one is kept", "token", k.String(), "expires", old.expires, "error", err)
		return old, nil
	}
	fresh := token{
		value:   issued.Status.Token,
		renew:   computeRenewal(issued, time.Duration(rand.N(int64(maxTokenJitter/time.Second)+1))*time.Second),
		expires: issued.Status.ExpirationTimestamp.Time,
	}
	t.mu.Lock()
	t.cache[k] = fresh
	switch {
	case fresh.renew.IsZero():
		delete(t.wake, k)
	case k.quiet:
		t.wake[k] = fresh.expires
	default:
		t.wake[k] = fresh.renew
	}
	t.mu.Unlock()
	t.issued.Put(struct{}{})
	return fresh, nil
}

func tokenRequest(p *v1.Pod, k tokenKey) *authenticationv1.TokenRequest {
	// The server refuses to issue a token of an account with another UID.
	r := &authenticationv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{UID: k.accountUID}, Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &k.seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID},
	}}
	if k.audience != "" {
		r.Spec.Audiences = []string{k.audience}
	}
	return r
}

// computeRenewal returns when a token is to be replaced: when a fifth of its life is left, and after a day at the latest, both earlier by the
// jitter. The server may have granted another life than was asked for, and says so; a token of which it says nothing is never
// replaced.
func computeRenewal(issued *authenticationv1.TokenRequest, jitter time.Duration) time.Time {
	if issued.Spec.ExpirationSeconds == nil {
		return time.Time{}
	}
	life := time.Duration(*issued.Spec.ExpirationSeconds) * time.Second
	expires := issued.Status.ExpirationTimestamp.Time
	renew := expires.Add(-life / 5)
	if oldest := expires.Add(-life).Add(maxTokenAge); oldest.Before(renew) {
		renew = oldest
	}
	return renew.Add(-jitter)
}

// run tells the pods of tokens that are to be renewed, and drops those that expired; a failed renewal is the pod's to try again then.
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
		if next := t.tellDue(time.Now()); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
	}
}

// tellDue tells the pods of the tokens that are due, and returns when the next is; zero for never.
func (t *tokens) tellDue(now time.Time) (next time.Time) {
	var due []pod.UID
	t.mu.Lock()
	for k, at := range t.wake {
		if !at.After(now) {
			if !k.quiet {
				due = append(due, k.pod)
			}
			if !now.Before(t.cache[k].expires) {
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
