package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"berth/internal/health"
)

const (
	// lookAgain bounds the sleep until a certificate is due: the host's clock may be set meanwhile.
	lookAgain = time.Hour
	// settle is the least time between a new certificate and the request for the next: a signer may
	// make some that are due at once.
	settle = 30 * time.Second
)

// renewRetry spaces the tries to get a certificate. Each wait is stretched by up to a half.
var renewRetry = wait.Backoff{Duration: 2 * time.Second, Factor: 2, Cap: 30 * time.Second, Steps: math.MaxInt}

// RotationConfig says what a Rotation keeps in force.
type RotationConfig struct {
	// Name is what it is, for messages, such as "client certificate".
	Name string
	// Store keeps it.
	Store *Store
	// Initial reads a certificate from elsewhere that is used while the store has none that holds;
	// nil if there is no such place.
	Initial func() (*tls.Certificate, error)
	// SignerName and Usages are those of the request; its name begins with Prefix.
	SignerName string
	Usages     []certificatesv1.KeyUsage
	Prefix     string
	// Wanted returns what the certificate must say, or nil while that is not known. When it
	// changes, Wake is called.
	Wanted func() *x509.CertificateRequest
	// Covers says whether a certificate says what is wanted; nil is always.
	Covers func(leaf *x509.Certificate, wanted *x509.CertificateRequest) bool
	// UntilEnd has each certificate used to the end of its life, instead of replacing it before.
	UntilEnd bool
	// Signer returns who is asked to sign.
	Signer func() (Signer, error)
	// Changed is called after another certificate is in force; nil if nobody cares.
	Changed func()
	// Metrics count the tries to get a certificate, and show how long it holds; of this Rotation
	// alone. nil: nothing does.
	Metrics *Metrics
	Log     *slog.Logger
	// Random returns a number in [0,1); nil is math/rand.
	Random func() float64
}

// Rotation keeps one certificate in force: it asks for one when there is none, and for the next
// before the end of its life. It is safe for concurrent use.
type Rotation struct {
	cfg     RotationConfig
	wake    chan struct{} // capacity 1
	missing time.Time     // since when there is no certificate, if there is none

	mu       sync.Mutex
	current  *tls.Certificate // guarded by mu; nil if there is none
	due      time.Time        // guarded by mu; when the next one is asked for
	there    chan struct{}    // guarded by mu; closed at the next change of current
	lastTold string           // of the goroutine of Run
}

// NewRotation returns a rotation that has no certificate before Load.
func NewRotation(cfg RotationConfig) *Rotation {
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	if cfg.Changed == nil {
		cfg.Changed = func() {}
	}
	if cfg.Metrics == nil {
		cfg.Metrics = ClientMetrics(nil)
	}
	if cfg.Covers == nil {
		cfg.Covers = func(*x509.Certificate, *x509.CertificateRequest) bool { return true }
	}
	r := &Rotation{cfg: cfg, wake: make(chan struct{}, 1), there: make(chan struct{}), missing: time.Now()}
	cfg.Metrics.rotation.Store(r)
	return r
}

// Load reads the certificate of the store, or the initial one. That there is none is no error.
func (r *Rotation) Load() error {
	now := time.Now()
	c, err := r.cfg.Store.Read()
	if (err != nil || !holds(c, now)) && r.cfg.Initial != nil {
		if initial, initialErr := r.cfg.Initial(); initialErr == nil && (err != nil || holds(initial, now)) {
			c, err = initial, nil
			r.adopt(initial, now)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", r.cfg.Name, err)
	}
	r.schedule(c)
	return nil
}

// adopt keeps a certificate that will be replaced in the store: kubeadm has its kubeconfig name the
// store when there is one.
func (r *Rotation) adopt(initial *tls.Certificate, now time.Time) {
	if r.cfg.UntilEnd || !holds(initial, now) {
		return
	}
	if err := r.cfg.Store.adopt(initial, now); err != nil {
		r.cfg.Log.Warn(r.cfg.Name+" of the kubeconfig not kept; the next one is", "error", err)
	}
}

// schedule puts a certificate in force. It is replaced at a random time between 70 and 90 % of its
// life, so that nodes that were set up together do not ask together.
func (r *Rotation) schedule(c *tls.Certificate) {
	life := c.Leaf.NotAfter.Sub(c.Leaf.NotBefore)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current, r.due = c, c.Leaf.NotAfter
	if !r.cfg.UntilEnd {
		r.due = c.Leaf.NotBefore.Add(time.Duration(float64(life) * (0.7 + 0.2*r.cfg.Random())))
	}
	close(r.there)
	r.there = make(chan struct{})
}

func holds(c *tls.Certificate, now time.Time) bool { return c != nil && now.Before(c.Leaf.NotAfter) }

// Current returns the certificate in force, or nil if there is none or its life has ended.
func (r *Rotation) Current() *tls.Certificate {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !holds(r.current, time.Now()) {
		return nil
	}
	return r.current
}

// Left returns how long the certificate in force holds, negative after its end; false if there is
// none.
func (r *Rotation) Left() (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == nil {
		return 0, false
	}
	return time.Until(r.current.Leaf.NotAfter), true
}

// latestRenewal is the part of its life after which a certificate should have been replaced.
const latestRenewal = 0.9

// Health says that there is no certificate in force, or that it ends soon and has not been
// replaced. It returns nil if neither is so.
func (r *Rotation) Health() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == nil {
		return health.Since(fmt.Errorf("there is no %s yet", r.cfg.Name), r.missing)
	}
	leaf, now := r.current.Leaf, time.Now()
	late := leaf.NotBefore.Add(time.Duration(float64(leaf.NotAfter.Sub(leaf.NotBefore)) * latestRenewal))
	switch {
	case !now.Before(leaf.NotAfter):
		return endOf(r.cfg.Name, leaf)
	case !r.cfg.UntilEnd && now.After(late):
		return health.Since(fmt.Errorf("the %s ends on %s and has not been replaced", r.cfg.Name, leaf.NotAfter.Format(time.RFC3339)), late)
	}
	return nil
}

// endOf says that a certificate has ended.
func endOf(name string, leaf *x509.Certificate) error {
	return health.Since(fmt.Errorf("the %s ended on %s", name, leaf.NotAfter.Format(time.RFC3339)), leaf.NotAfter)
}

// age returns how long ago the certificate in force began to hold, 0 if there is none.
func (r *Rotation) age() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == nil {
		return 0
	}
	return time.Since(r.current.Leaf.NotBefore)
}

// Wait returns when there is a certificate in force. The error says what is missing.
func (r *Rotation) Wait(ctx context.Context) error {
	for {
		r.mu.Lock()
		ok, there := holds(r.current, time.Now()), r.there
		r.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-there:
		case <-time.After(renewRetry.Cap): // the host's clock may have been set back, and the one there hold again
		case <-ctx.Done():
			return fmt.Errorf("no %s that is valid: %w", r.cfg.Name, ctx.Err())
		}
	}
}

// Wake says that what is wanted may have changed. It never blocks.
func (r *Rotation) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run keeps the certificate in force until ctx is done.
func (r *Rotation) Run(ctx context.Context) error {
	retry := renewRetry.DelayFunc()
	for ctx.Err() == nil {
		wanted := r.cfg.Wanted()
		sleep := lookAgain
		if wanted != nil {
			sleep = min(sleep, r.untilDue(wanted))
		}
		if sleep <= 0 {
			age := r.age()
			err := r.renew(ctx, wanted)
			if ctx.Err() != nil {
				break
			}
			r.cfg.Metrics.renewed(age, err)
			r.report(err)
			if err == nil {
				sleep, retry = settle, renewRetry.DelayFunc()
			} else {
				sleep = retry()
				sleep += time.Duration(r.cfg.Random() * 0.5 * float64(sleep))
			}
		}
		t := time.NewTimer(sleep)
		select {
		case <-ctx.Done():
		case <-t.C:
		case <-r.wake:
		}
		t.Stop()
	}
	return ctx.Err()
}

// untilDue returns how long it is until the next certificate is to be asked for.
func (r *Rotation) untilDue(wanted *x509.CertificateRequest) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !holds(r.current, time.Now()) || !r.cfg.Covers(r.current.Leaf, wanted) {
		return 0
	}
	return time.Until(r.due)
}

// renew gets the next certificate.
func (r *Rotation) renew(ctx context.Context, wanted *x509.CertificateRequest) error {
	signer, err := r.cfg.Signer()
	if err != nil {
		return err
	}
	key, err := r.cfg.Store.pendingKey()
	if err != nil {
		return err
	}
	q := request{prefix: r.cfg.Prefix, signerName: r.cfg.SignerName, usages: r.cfg.Usages, template: wanted, key: key}
	signed, err := q.sign(ctx, signer)
	if errors.Is(err, errRefused) {
		return errors.Join(err, r.cfg.Store.forgetPending())
	}
	if err != nil {
		return err
	}
	c, err := r.cfg.Store.Write(signed, key, time.Now())
	if err == nil && !holds(c, time.Now()) {
		err = errors.New("what was signed has ended already")
	}
	// Whatever came of it, another request needs another key.
	if err := errors.Join(err, r.cfg.Store.forgetPending()); err != nil {
		return err
	}
	r.schedule(c)
	r.cfg.Log.Info("new "+r.cfg.Name, "subject", c.Leaf.Subject.String(), "until", c.Leaf.NotAfter, "file", r.cfg.Store.Path())
	r.cfg.Changed()
	return nil
}

// report logs a failure once, and its end.
func (r *Rotation) report(err error) {
	switch {
	case err == nil:
		r.lastTold = ""
	case err.Error() != r.lastTold:
		r.cfg.Log.Warn("no new "+r.cfg.Name+" yet, trying again", "error", err)
		r.lastTold = err.Error()
	}
}

// CoversNames says whether a certificate is for all names and addresses of a request and its
// subject, and for no others.
func CoversNames(leaf *x509.Certificate, wanted *x509.CertificateRequest) bool {
	return leaf.Subject.CommonName == wanted.Subject.CommonName && slices.Equal(leaf.Subject.Organization, wanted.Subject.Organization) &&
		isFor(leaf, wanted.DNSNames, wanted.IPAddresses)
}

// isFor says whether a certificate is for all these names and addresses, and for no others.
func isFor(leaf *x509.Certificate, dns []string, ips []net.IP) bool {
	all := func(dns []string, ips []net.IP) []string {
		out := slices.Clone(dns)
		for _, ip := range ips {
			out = append(out, ip.String())
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	return slices.Equal(all(leaf.DNSNames, leaf.IPAddresses), all(dns, ips))
}

// Store returns where the certificate is kept.
func (r *Rotation) Store() *Store { return r.cfg.Store }
