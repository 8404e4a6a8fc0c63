package images

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distribution/reference"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/util/flowcontrol"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/runtime/cri"
)

// pullKey identifies pulls that are shared: the same image, with the same credentials in the same
// order, of the same service accounts.
type pullKey struct {
	image, handler, auths string
}

// pullRequest is the request for a pull.
type pullRequest struct {
	names
	uid     pod.UID
	spec    *runtimeapi.ImageSpec
	sandbox *runtimeapi.PodSandboxConfig
	// credentials are tried in order; without any the pull is anonymous.
	credentials []credential
	// ahead: no container waits for it yet.
	ahead bool
}

// pull is one pull with any number of waiting callers. The fields below ahead are written before
// done is closed and only read after it.
type pull struct {
	cancel  context.CancelFunc
	waiters int // guarded by pulls.mu
	name    reference.Named
	pods    map[pod.UID]int // guarded by pulls.mu; of the waiters
	began   time.Time       // guarded by pulls.mu; zero while it is queued
	tried   string          // the credential sources, for the journal
	done    chan struct{}
	ahead   atomic.Bool // only prefetches wait for it: it yields to pulls that containers wait for

	ref  string
	size uint64 // bytes; 0 if unknown
	took time.Duration
	err  error
}

type pulls struct {
	runtime Runtime
	queue   *pullQueue // nil if pulls are not bounded
	limit   flowcontrol.PassiveRateLimiter
	records *records // nil if nothing is recorded
	log     *slog.Logger

	mu      sync.Mutex
	pulling map[pullKey]*pull // guarded by mu
}

// pull waits for the pull of w, and starts it unless it is active. If ctx is done first, it returns
// ctx's cause; the last caller to leave cancels the pull and waits for its termination.
func (f *pulls) pull(ctx context.Context, w pullRequest) (*pull, error) {
	key := pullKey{image: w.image, handler: w.spec.RuntimeHandler}
	for _, a := range distinct(w.credentials) {
		key.auths += a.hash()
	}
	for _, c := range w.credentials {
		if c.account != nil {
			key.auths += c.account.UID // the pull record names the account
		}
	}
	fl := f.join(key, w)
	select {
	case <-fl.done:
		return fl, nil
	case <-ctx.Done():
	}
	if f.abandon(key, fl, w.uid) {
		fl.cancel()
		<-fl.done
	}
	return nil, context.Cause(ctx)
}

func (f *pulls) join(key pullKey, w pullRequest) *pull {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl, ok := f.pulling[key]; ok {
		fl.waiters++
		fl.pods[w.uid]++
		if !w.ahead {
			fl.ahead.Store(false)
		}
		return fl
	}
	// Not derived from the caller's context: the pull is shared, and must survive the first caller.
	ctx, cancel := context.WithCancel(context.Background())
	fl := &pull{cancel: cancel, waiters: 1, name: w.full, tried: describe(w.credentials), pods: map[pod.UID]int{w.uid: 1}, done: make(chan struct{})}
	fl.ahead.Store(w.ahead)
	f.pulling[key] = fl
	go f.run(ctx, key, fl, w)
	return fl
}

// abandon reports whether the caller was the last to wait for the pull. If so, no caller can join
// it any more.
func (f *pulls) abandon(key pullKey, fl *pull, uid pod.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl.waiters--
	if fl.pods[uid]--; fl.pods[uid] == 0 {
		delete(fl.pods, uid)
	}
	if fl.waiters > 0 {
		return false
	}
	if f.pulling[key] == fl {
		delete(f.pulling, key)
	}
	return true
}

func (f *pulls) run(ctx context.Context, key pullKey, fl *pull, w pullRequest) {
	defer close(fl.done)
	defer fl.cancel()
	if f.queue != nil {
		c := claim{uid: w.uid, registry: reference.Domain(w.full), ahead: &fl.ahead}
		if fl.err = f.queue.acquire(ctx, c); fl.err != nil {
			return
		}
		defer func() {
			if ctx.Err() == nil { // otherwise it was cancelled
				f.queue.recordResult(c.registry, fl.took, time.Now(), fl.err)
			}
			f.queue.release(c.uid)
		}()
	}
	began := time.Now()
	f.mu.Lock()
	fl.began = began
	f.mu.Unlock()
	fl.ref, fl.size, fl.err = f.recorded(ctx, w)
	fl.took = time.Since(began)
	// From here on a new caller starts its own pull: policy Always pulls at every start.
	f.mu.Lock()
	if f.pulling[key] == fl {
		delete(f.pulling, key)
	}
	f.mu.Unlock()
}

// recordTimeout bounds the inspection of an image after its pull, which a cancelled pull waits for
// too.
const recordTimeout = 10 * time.Second

// recorded pulls the image, and ensures that it is never present without its record or its intent.
func (f *pulls) recorded(ctx context.Context, w pullRequest) (ref string, size uint64, err error) {
	if f.records == nil {
		ref, _, err = f.tryAll(ctx, w)
		if err != nil {
			return "", 0, err
		}
		// The size is only for the event's text; its lack does not fail a successful pull.
		img, _ := f.runtime.ImageStatus(ctx, w.spec)
		return ref, img.GetSize(), nil
	}
	before, err := f.runtime.ImageStatus(ctx, w.spec)
	if err != nil {
		return "", 0, err
	}
	if err := f.records.begin(w.names); err != nil {
		return "", 0, err
	}
	ref, used, err := f.tryAll(ctx, w)
	with := pulledWith{}
	if err == nil {
		with = pulledWithOf(w.credentials, used)
	}
	after, lost := f.recordResult(ctx, w, before.GetId(), ref, with)
	if lost != nil {
		// The intent remains, in memory and on disk: the image is not treated as one that every pod
		// may use.
		f.log.Warn("the pull of an image is not recorded: pods must prove again that they may use it", "image", w.image, "error", lost)
	}
	if err != nil {
		return "", 0, err
	}
	return ref, after.GetSize(), nil
}

// recordResult records the result of a pull. A failed or cancelled one may have stored the image
// nevertheless.
func (f *pulls) recordResult(ctx context.Context, w pullRequest, before, ref string, with pulledWith) (*runtimeapi.Image, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	after, err := f.runtime.ImageStatus(ctx, w.spec)
	if err != nil {
		return nil, err
	}
	// Present images are looked up by ID, which may differ from the reference that a pull returns.
	for _, r := range []string{after.GetId(), ref} {
		if r == "" || ref == "" && r == before {
			continue
		}
		if err := f.records.add(r, w.repository, with); err != nil {
			return after, err
		}
	}
	return after, f.records.end(w.names)
}

// pulledWithOf returns the record of a pull that succeeded with the auth.
func pulledWithOf(credentials []credential, used *auth) pulledWith {
	if used == nil {
		return pulledWith{NodePodsAccessible: true}
	}
	var with pulledWith
	for _, c := range credentials {
		switch {
		case c.auth != *used:
		case c.account != nil:
			if !slices.Contains(with.KubernetesServiceAccounts, *c.account) {
				with.KubernetesServiceAccounts = append(with.KubernetesServiceAccounts, *c.account)
			}
		case c.secret == nil:
			return pulledWith{NodePodsAccessible: true}
		default:
			s := *c.secret
			s.CredentialHash = c.auth.hash()
			if !slices.Contains(with.KubernetesSecrets, s) {
				with.KubernetesSecrets = append(with.KubernetesSecrets, s)
			}
		}
	}
	return with
}

// errTooFast is the kubelet's own error, which users know.
var errTooFast = errors.New("pull QPS exceeded")

// tryAll tries one auth after the other, and returns the runtime's reference and the auth that
// succeeded, nil for none.
func (f *pulls) tryAll(ctx context.Context, w pullRequest) (ref string, used *auth, err error) {
	auths := distinct(w.credentials)
	if len(auths) == 0 {
		ref, err = f.try(ctx, w, nil)
		return ref, nil, err
	}
	var errs []error
	for i := range auths {
		ref, err := f.try(ctx, w, auths[i].toCRI())
		if err == nil {
			return ref, &auths[i], nil
		}
		errs = append(errs, hideIn(err, auths[i]))
		if ctx.Err() != nil || errors.Is(err, cri.ErrUnavailable) {
			break // other credentials would fail as well
		}
	}
	if len(errs) == 1 {
		return "", nil, errs[0]
	}
	return "", nil, utilerrors.NewAggregate(errs)
}

func (f *pulls) try(ctx context.Context, w pullRequest, a *runtimeapi.AuthConfig) (string, error) {
	if !f.limit.TryAccept() {
		return "", errTooFast
	}
	return f.runtime.PullImage(ctx, w.spec, a, w.sandbox)
}

// hideIn redacts the secrets of the auth in an error of the runtime or registry.
func hideIn(err error, a auth) error {
	text := cri.Message(err)
	hidden := text
	for _, secret := range []string{a.Password, a.IdentityToken, a.RegistryToken} {
		hidden = hide(hidden, secret)
	}
	if hidden == text {
		return err
	}
	return errors.New(hidden)
}

// hide redacts the secret in the text.
func hide(text, secret string) string {
	if len(secret) < minSecret {
		return text
	}
	return strings.ReplaceAll(text, secret, "(hidden)")
}

// minSecret is the minimum length of a secret that is redacted: shorter ones occur in most texts
// anyway.
const minSecret = 4
