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
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/runtime/cri"
)

// pullKey says which pulls are the same pull: the same image, with the same credentials in the
// same order, of the same service accounts.
type pullKey struct {
	image, handler, auths string
}

// want is what a flight is begun for.
type want struct {
	names
	uid     pod.UID
	spec    *runtimeapi.ImageSpec
	sandbox *runtimeapi.PodSandboxConfig
	// credentials are tried in order; without any the pull is anonymous.
	credentials []credential
	// ahead: no container waits for it yet.
	ahead bool
}

// pull is one pull that any number of callers wait for. The fields below done are written before
// done is closed and only read after it.
type pull struct {
	cancel  context.CancelFunc
	waiters int // guarded by flights.mu
	name    reference.Named
	pods    map[pod.UID]int // guarded by flights.mu; of the waiters
	began   time.Time       // guarded by flights.mu; zero while it waits for its turn
	tried   string          // with which credentials, for the journal
	done    chan struct{}
	ahead   atomic.Bool // nobody but look-aheads waits for it: it gives way to those that containers wait for

	ref  string
	size uint64 // bytes; 0 when unknown
	took time.Duration
	err  error
}

// limiter refuses pulls that come too fast.
type limiter interface{ TryAccept() bool }

type pulls struct {
	runtime Runtime
	queue   *pullQueue // nil when pulls are not bounded
	limit   limiter    // nil when their rate is not
	records *records   // nil when nothing is recorded
	log     *slog.Logger

	mu      sync.Mutex
	pulling map[pullKey]*pull // guarded by mu
}

// pull waits for the pull of w, starting it unless it is in flight. When ctx ends before, it
// returns ctx's cause; the last caller to leave cancels the pull and waits until the runtime has
// let go of it.
func (f *pulls) pull(ctx context.Context, w want) (*pull, error) {
	key := pullKey{image: w.image, handler: w.spec.RuntimeHandler}
	for _, a := range distinct(w.credentials) {
		key.auths += a.hash()
	}
	for _, c := range w.credentials {
		if c.account != nil {
			key.auths += c.account.UID // the record of the pull names the account
		}
	}
	fl := f.join(key, w)
	select {
	case <-fl.done:
		return fl, nil
	case <-ctx.Done():
	}
	if f.leave(key, fl, w.uid) {
		fl.cancel()
		<-fl.done
	}
	return nil, context.Cause(ctx)
}

func (f *pulls) join(key pullKey, w want) *pull {
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
	// Not derived from the caller's context: the pull serves whoever joins, and must survive the
	// first caller.
	ctx, cancel := context.WithCancel(context.Background())
	fl := &pull{cancel: cancel, waiters: 1, name: w.full, tried: describe(w.credentials), pods: map[pod.UID]int{w.uid: 1}, done: make(chan struct{})}
	fl.ahead.Store(w.ahead)
	f.pulling[key] = fl
	go f.run(ctx, key, fl, w)
	return fl
}

// leave reports whether the caller was the last to wait for the flight. Then the flight is not
// joined any more.
func (f *pulls) leave(key pullKey, fl *pull, uid pod.UID) bool {
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

func (f *pulls) run(ctx context.Context, key pullKey, fl *pull, w want) {
	defer close(fl.done)
	defer fl.cancel()
	if f.queue != nil {
		c := claim{uid: w.uid, registry: reference.Domain(w.full), ahead: &fl.ahead}
		if fl.err = f.queue.take(ctx, c); fl.err != nil {
			return
		}
		defer func() {
			if ctx.Err() == nil { // else nobody wanted it any more
				f.queue.ended(c.registry, fl.took, time.Now(), fl.err)
			}
			f.queue.give(c.uid)
		}()
	}
	began := time.Now()
	f.mu.Lock()
	fl.began = began
	f.mu.Unlock()
	fl.ref, fl.size, fl.err = f.recorded(ctx, w)
	fl.took = time.Since(began)
	// From here on a new caller gets a pull of its own: with policy Always the registry is asked at
	// every start.
	f.mu.Lock()
	if f.pulling[key] == fl {
		delete(f.pulling, key)
	}
	f.mu.Unlock()
}

// recordTimeout bounds the look at an image after its pull, which a cancelled pull waits for too.
const recordTimeout = 10 * time.Second

// recorded pulls, and sees to it that the image is never there without its record or its intent.
func (f *pulls) recorded(ctx context.Context, w want) (ref string, size uint64, err error) {
	if f.records == nil {
		ref, _, err = f.tryAll(ctx, w)
		if err != nil {
			return "", 0, err
		}
		// The size is for the event's text only; a pull that succeeded does not fail for the lack
		// of it.
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
	after, lost := f.note(ctx, w, before.GetId(), ref, with)
	if lost != nil {
		// The intent stays, here and on disk: nobody takes the image for one that every pod may
		// use.
		f.log.Warn("the pull of an image is not recorded: pods must prove again that they may use it", "image", w.image, "error", lost)
	}
	if err != nil {
		return "", 0, err
	}
	return ref, after.GetSize(), nil
}

// note records the outcome of a pull. A failed or cancelled one may have brought the image all the
// same.
func (f *pulls) note(ctx context.Context, w want, before, ref string, with pulledWith) (*runtimeapi.Image, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	after, err := f.runtime.ImageStatus(ctx, w.spec)
	if err != nil {
		return nil, err
	}
	// Present images are asked for by their ids, which a runtime's answer to a pull need not be.
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

// pulledWithOf returns what is recorded of a pull that the auth opened.
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
			s.CredentialHash = c.hash()
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
// opened the registry, nil for none.
func (f *pulls) tryAll(ctx context.Context, w want) (ref string, used *auth, err error) {
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
			break // no other credential would do better
		}
	}
	if len(errs) == 1 {
		return "", nil, errs[0]
	}
	return "", nil, utilerrors.NewAggregate(errs)
}

func (f *pulls) try(ctx context.Context, w want, a *runtimeapi.AuthConfig) (string, error) {
	if f.limit != nil && !f.limit.TryAccept() {
		return "", errTooFast
	}
	return f.runtime.PullImage(ctx, w.spec, a, w.sandbox)
}

// hideIn returns the error without the secret parts of the auth, should a runtime or a registry
// have put them into its words.
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

// hide returns the text without the secret.
func hide(text, secret string) string {
	if len(secret) < minSecret {
		return text
	}
	return strings.ReplaceAll(text, secret, "(hidden)")
}

// minSecret is the least length of a secret that is looked for in texts: a shorter one is in most
// of them anyway.
const minSecret = 4
