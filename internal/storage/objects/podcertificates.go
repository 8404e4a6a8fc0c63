package objects

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
)

// CertificateAPI is the part of the API server that pod certificates need (KEP-4317).
type CertificateAPI interface {
	// FollowPodCertificateRequests calls seen with all requests of this node, like the methods of
	// API.
	FollowPodCertificateRequests(ctx context.Context, seen func([]*certificatesv1beta1.PodCertificateRequest))
	// CreatePodCertificateRequest creates a request and returns it as stored.
	CreatePodCertificateRequest(ctx context.Context, r *certificatesv1beta1.PodCertificateRequest) (*certificatesv1beta1.PodCertificateRequest, error)
}

const (
	// lostAfter is how long a request may be missing at the server before it counts as deleted,
	// plus up to half of it.
	lostAfter = 10 * time.Minute
	// maxRefreshJitter spreads renewals.
	maxRefreshJitter = 5 * time.Minute
	// overdueAfter is the delay of a renewal after which an event is recorded.
	overdueAfter = 10 * time.Minute
)

// requestRetry is the back-off of attempts to create a request.
var requestRetry = wait.Backoff{Duration: time.Second, Factor: 2, Cap: 2 * time.Minute, Steps: math.MaxInt}

// PodCertificates configures certificates of pods; the zero value disables them.
type PodCertificates struct {
	API CertificateAPI // nil: the feature is disabled
	// Node returns the newest Node, and whether it is known.
	Node func() (*v1.Node, bool)
	// Event records an event about a pod.
	Event func(p *v1.Pod, eventtype, reason, message string)
}

// credentialKey identifies one podCertificate source.
type credentialKey struct {
	uid    pod.UID
	volume string
	source int // its index in the volume
}

// credential is the state of one podCertificate source. All fields except pod and src are owned by
// run; those that others read are guarded by the store's mu.
//
//	requested ──issued──► current ──beginRefreshAt + up to 5 min──► requested, the old pair stays current
//	    │ ▲
//	    │ └── the request does not exist at the server any more
//	    └── denied or failed: final
type credential struct {
	pod *v1.Pod
	src *v1.PodCertificateProjection

	request   types.NamespacedName // the pending request; its name is "" for none
	asked     time.Time            // creation time of the request, by this node's clock
	created   time.Time            // the same, by the server's clock
	pending   []byte               // the key of the request, as PEM
	lost      time.Time            // when the request counts as deleted, unless it exists
	delay     wait.DelayFunc       // after a request that could not be created
	next      time.Time            // time of the next step; zero: after the next event
	refreshAt time.Time
	overdueAt time.Time // time of the event for an overdue refresh; zero: none
	expiresAt time.Time // time of the event for the expiry; zero: none

	key, chain []byte // the current pair, as PEM
	refused    error  // the request was rejected, there is no pair any more
	refusal    string // denied or failed
	// Of the current pair, by this process's clock.
	beginRefresh, notAfter time.Time
}

// credentials are the keys and certificates of pods. They are in memory only: a restarted agent
// requests new ones.
type credentials struct {
	PodCertificates
	accounts *accounts
	changed  *pod.Inbox[pod.UID]
	turned   *pod.Inbox[struct{}] // pods or requests have changed
	log      *slog.Logger

	mu       sync.Mutex
	held     map[credentialKey]*credential                                       // guarded by mu
	requests map[types.NamespacedName]*certificatesv1beta1.PodCertificateRequest // guarded by mu; from the server, only replaced
}

func newCredentials(c PodCertificates, accounts *accounts, changed *pod.Inbox[pod.UID], log *slog.Logger) *credentials {
	return &credentials{
		PodCertificates: c, accounts: accounts, changed: changed, turned: pod.NewInbox[struct{}](), log: log,
		held: map[credentialKey]*credential{},
	}
}

// register replaces the credentials of the pod by those of its volumes.
func (c *credentials) register(p *v1.Pod) {
	if c.API == nil {
		return
	}
	wanted := map[credentialKey]*v1.PodCertificateProjection{}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.Projected == nil {
			continue
		}
		for j := range v.Projected.Sources {
			if s := v.Projected.Sources[j].PodCertificate; s != nil {
				wanted[credentialKey{p.UID, v.Name, j}] = s
			}
		}
	}
	c.mu.Lock()
	came := false
	for k, src := range wanted {
		if c.held[k] == nil {
			c.held[k] = &credential{pod: p, src: src, delay: requestRetry.DelayFunc()}
			came = true
		}
	}
	c.mu.Unlock()
	if came {
		c.turned.Put(struct{}{})
	}
}

func (c *credentials) forget(uid pod.UID) {
	c.mu.Lock()
	gone := false
	for k := range c.held {
		if k.uid == uid {
			delete(c.held, k)
			gone = true
		}
	}
	c.mu.Unlock()
	if gone {
		c.turned.Put(struct{}{})
	}
}

// get returns the key and the certificates of a source.
func (c *credentials) get(p *v1.Pod, volume string, source int) (key, chain []byte, err error) {
	if c.API == nil {
		return nil, nil, errors.New("pods get no certificates here: turn on the feature gate PodCertificateRequest")
	}
	k := credentialKey{p.UID, volume, source}
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.held[k]
	switch {
	case h == nil:
		return nil, nil, fmt.Errorf("no credentials yet for key=%s/%s/%s/%s/%d", p.Namespace, p.Name, p.UID, volume, source)
	case h.refused != nil:
		return nil, nil, h.refused
	case h.key == nil:
		return nil, nil, errors.New("credential bundle is not issued yet")
	}
	return h.key, h.chain, nil
}

// run requests and stores certificates until ctx is done. Requests are watched while a pod has a
// podCertificate source.
func (c *credentials) run(ctx context.Context) {
	var watches sync.WaitGroup
	defer watches.Wait()
	var stop context.CancelFunc // nil: requests are not watched
	timer := time.NewTimer(lostAfter)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.turned.Wake():
			c.turned.Take()
		case <-timer.C:
		}
		held := c.all()
		switch wanted := len(held) > 0; {
		case wanted && stop == nil:
			watching, cancel := context.WithCancel(ctx)
			stop = cancel
			watches.Go(func() {
				defer cancel()
				c.API.FollowPodCertificateRequests(watching, c.seen)
			})
		case !wanted && stop != nil:
			stop()
			stop = nil
		}
		var next time.Time
		for _, h := range held {
			c.step(ctx, h)
			if !h.next.IsZero() && (next.IsZero() || h.next.Before(next)) {
				next = h.next
			}
		}
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
	}
}

func (c *credentials) all() []*credential {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]*credential, 0, len(c.held))
	for _, h := range c.held {
		out = append(out, h)
	}
	return out
}

func (c *credentials) seen(all []*certificatesv1beta1.PodCertificateRequest) {
	requests := make(map[types.NamespacedName]*certificatesv1beta1.PodCertificateRequest, len(all))
	for _, r := range all {
		requests[types.NamespacedName{Namespace: r.Namespace, Name: r.Name}] = r
	}
	c.mu.Lock()
	c.requests = requests
	c.mu.Unlock()
	c.turned.Put(struct{}{})
}

// step does what is due for one credential and schedules the next step.
func (c *credentials) step(ctx context.Context, h *credential) {
	if h.refused != nil {
		h.next = time.Time{}
		return
	}
	if h.request.Name != "" {
		c.takeAnswer(h)
	}
	now := time.Now()
	wanting := h.request.Name == "" && h.refused == nil && (h.key == nil || reached(h.refreshAt, now))
	if wanting && reached(h.next, now) {
		h.next = time.Time{}
		if err := c.ask(ctx, h); err != nil {
			again := h.delay()
			h.next = now.Add(again)
			c.log.Warn("no certificate asked for", "pod", h.pod.Namespace+"/"+h.pod.Name, "signer", h.src.SignerName, "again", again, "error", err)
		}
	}
	switch {
	case h.refused != nil:
		h.next = time.Time{}
	case h.request.Name != "":
		h.next = h.lost
	case h.key != nil && !reached(h.refreshAt, now):
		h.next = h.refreshAt
	}
	c.recordAge(h, now)
}

// takeAnswer processes the result of the request.
func (c *credentials) takeAnswer(h *credential) {
	c.mu.Lock()
	r := c.requests[h.request]
	c.mu.Unlock()
	if r == nil {
		if !time.Now().Before(h.lost) {
			h.request = types.NamespacedName{} // requested again at once
			h.next = time.Time{}
		}
		return
	}
	h.lost = c.lostAt() // it exists
	for _, condition := range r.Status.Conditions {
		if condition.Status != metav1.ConditionTrue {
			continue
		}
		switch condition.Type {
		case certificatesv1beta1.PodCertificateRequestConditionTypeIssued:
			c.takeIssued(h, r)
		case certificatesv1beta1.PodCertificateRequestConditionTypeDenied:
			c.takeRefusal(h, "denied", condition)
		case certificatesv1beta1.PodCertificateRequestConditionTypeFailed:
			c.takeRefusal(h, "failed", condition)
		default:
			continue
		}
		c.changed.Put(h.pod.UID)
		return
	}
}

func (c *credentials) takeIssued(h *credential, r *certificatesv1beta1.PodCertificateRequest) {
	var chain bytes.Buffer
	for der := range certificatesIn(r.Status.CertificateChain) {
		chain.Write(pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: der}))
	}
	begin, end := h.local(r.Status.BeginRefreshAt), h.local(r.Status.NotAfter)
	c.mu.Lock()
	h.key, h.chain, h.beginRefresh, h.notAfter = h.pending, chain.Bytes(), begin, end
	c.mu.Unlock()
	h.request, h.pending, h.delay, h.next = types.NamespacedName{}, nil, requestRetry.DelayFunc(), time.Time{}
	h.refreshAt = begin.Add(rand.N(maxRefreshJitter))
	h.overdueAt, h.expiresAt = begin.Add(overdueAfter), end
}

// local converts a time of the server's clock to the clock of this process: the two may differ.
func (h *credential) local(t *metav1.Time) time.Time {
	return h.asked.Add(ptr.Deref(t, metav1.Time{}).Sub(h.created))
}

func (c *credentials) takeRefusal(h *credential, how string, condition metav1.Condition) {
	c.mu.Lock()
	h.refusal = how
	h.refused = fmt.Errorf("PodCertificateRequest was permanently %s: reason=%q message=%q", how, condition.Reason, condition.Message)
	c.mu.Unlock()
	h.pending = nil
	c.Event(h.pod, v1.EventTypeWarning, condition.Type,
		fmt.Sprintf("PodCertificateRequest %s: reason=%q message=%q", h.request.Name, condition.Reason, condition.Message))
}

// recordAge records an event when a refresh is overdue, and one when the pair has expired.
func (c *credentials) recordAge(h *credential, now time.Time) {
	for _, at := range []struct {
		when            *time.Time
		reason, message string
	}{
		{&h.overdueAt, "CertificateOverdueForRefresh", "PodCertificate refresh overdue"},
		{&h.expiresAt, "CertificateExpired", "PodCertificate expired"},
	} {
		switch {
		case at.when.IsZero() || h.refused != nil:
		case !now.Before(*at.when):
			c.Event(h.pod, v1.EventTypeWarning, at.reason, fmt.Sprintf("%s: signer %s", at.message, h.src.SignerName))
			*at.when = time.Time{}
		case h.next.IsZero() || at.when.Before(h.next):
			h.next = *at.when
		}
	}
}

func (c *credentials) lostAt() time.Time { return time.Now().Add(lostAfter + rand.N(lostAfter/2)) }

// ask generates a key and requests a certificate for it.
func (c *credentials) ask(ctx context.Context, h *credential) error {
	p := h.pod
	node, known := c.Node()
	if !known {
		return errors.New("the Node of this machine is not known")
	}
	account, err := c.accounts.get(ctx, p)
	if err != nil {
		return err
	}
	key, stub, err := generateRequest(h.src.KeyType)
	if err != nil {
		return err
	}
	r, err := c.API.CreatePodCertificateRequest(ctx, &certificatesv1beta1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, GenerateName: "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID}},
		},
		Spec: certificatesv1beta1.PodCertificateRequestSpec{
			SignerName: h.src.SignerName, PodName: p.Name, PodUID: p.UID, ServiceAccountName: account.Name, ServiceAccountUID: account.UID,
			NodeName: types.NodeName(node.Name), NodeUID: node.UID, MaxExpirationSeconds: h.src.MaxExpirationSeconds,
			StubPKCS10Request: stub, UnverifiedUserAnnotations: h.src.UserAnnotations,
		},
	})
	if err != nil {
		return err
	}
	h.request = types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
	h.pending = key
	h.asked, h.created, h.lost = time.Now(), r.CreationTimestamp.Time, c.lostAt()
	return nil
}

// PodCertificate returns the private key (PKCS #8) and the certificates of a podCertificate source
// of a registered pod, as PEM; source is its index in the volume. It does not wait: the pod is
// notified when they are issued.
func (o *Objects) PodCertificate(p *v1.Pod, volume string, source int) (key, chain []byte, err error) {
	return o.credentials.get(p, volume, source)
}
