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
	// recheckPeriod limits the sleep until a certificate is due, because the host's clock may be
	// set meanwhile.
	recheckPeriod = time.Hour
	// minPeriod is the minimum time between a new certificate and the next request: a signer may
	// issue certificates that are due at once.
	minPeriod = 30 * time.Second
)

// renewRetry is the back-off of renewal attempts. Each delay is extended by up to a half.
var renewRetry = wait.Backoff{Duration: 2 * time.Second, Factor: 2, Cap: 30 * time.Second, Steps: math.MaxInt}

// RotationConfig is the configuration of a Rotation.
type RotationConfig struct {
	// Name identifies the certificate in messages, such as "client certificate".
	Name string
	// Store stores the certificate.
	Store *Store
	// Initial reads a certificate from another place, for use while the store has no valid one; nil
	// if there is no such place.
	Initial func() (*tls.Certificate, error)
	// SignerName and Usages are fields of the request; its name begins with Prefix.
	SignerName string
	Usages     []certificatesv1.KeyUsage
	Prefix     string
	// Wanted returns the template of the certificate, or nil while it is not known. Call Wake after
	// it changes.
	Wanted func() *x509.CertificateRequest
	// Covers reports whether a certificate matches the template; nil: always.
	Covers func(leaf *x509.Certificate, wanted *x509.CertificateRequest) bool
	// UntilEnd disables renewal before a certificate expires.
	UntilEnd bool
	// Signer returns the API for the next request.
	Signer func() (Signer, error)
	// Changed is called after a change of the certificate; it may be nil.
	Changed func()
	// Metrics count renewal attempts and export the time to expiry, of this Rotation only; nil: no
	// metrics.
	Metrics *Metrics
	Log     *slog.Logger
	// Random returns a number in [0,1); nil is math/rand.
	Random func() float64
}

// Rotation maintains one certificate: it requests one if there is none, and renews it before it
// expires. It is safe for concurrent use.
type Rotation struct {
	cfg     RotationConfig
	wake    chan struct{} // capacity 1
	missing time.Time     // since when there is no certificate, if there is none

	mu         sync.Mutex
	current    *tls.Certificate // guarded by mu; nil if there is none
	due        time.Time        // guarded by mu; time of the next request
	changed    chan struct{}    // guarded by mu; closed at the next change of current
	lastLogged string           // owned by the goroutine of Run
}

// NewRotation returns a rotation without a certificate; call Load.
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
	r := &Rotation{cfg: cfg, wake: make(chan struct{}, 1), changed: make(chan struct{}), missing: time.Now()}
	cfg.Metrics.rotation.Store(r)
	return r
}

// Load reads the certificate of the store, or the initial one. It returns nil if there is none.
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

// adopt copies a certificate to the store, where it will be replaced: kubeadm makes its kubeconfig
// name the store if it exists.
func (r *Rotation) adopt(initial *tls.Certificate, now time.Time) {
	if r.cfg.UntilEnd || !holds(initial, now) {
		return
	}
	if err := r.cfg.Store.adopt(initial, now); err != nil {
		r.cfg.Log.Warn(r.cfg.Name+" of the kubeconfig not kept; the next one is", "error", err)
	}
}

// schedule makes a certificate the current one. It is replaced at a random time between 70 and 90 %
// of its life, so that nodes that were set up together do not send their requests together.
func (r *Rotation) schedule(c *tls.Certificate) {
	life := c.Leaf.NotAfter.Sub(c.Leaf.NotBefore)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current, r.due = c, c.Leaf.NotAfter
	if !r.cfg.UntilEnd {
		r.due = c.Leaf.NotBefore.Add(time.Duration(float64(life) * (0.7 + 0.2*r.cfg.Random())))
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

func holds(c *tls.Certificate, now time.Time) bool { return c != nil && now.Before(c.Leaf.NotAfter) }

// Current returns the current certificate, or nil if there is none or it has expired.
func (r *Rotation) Current() *tls.Certificate {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !holds(r.current, time.Now()) {
		return nil
	}
	return r.current
}

// Left returns the time until the current certificate expires, negative after that; false if there
// is none.
func (r *Rotation) Left() (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == nil {
		return 0, false
	}
	return time.Until(r.current.Leaf.NotAfter), true
}

// latestRenewal is the fraction of its life after which a certificate should have been replaced.
const latestRenewal = 0.9

// Health returns an error if there is no certificate, or if it has expired or should have been
// replaced.
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

func endOf(name string, leaf *x509.Certificate) error {
	return health.Since(fmt.Errorf("the %s ended on %s", name, leaf.NotAfter.Format(time.RFC3339)), leaf.NotAfter)
}

// age returns the time since the current certificate became valid, 0 if there is none.
func (r *Rotation) age() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == nil {
		return 0
	}
	return time.Since(r.current.Leaf.NotBefore)
}

// Wait returns when there is a valid certificate, or with an error that names it when ctx is done.
func (r *Rotation) Wait(ctx context.Context) error {
	for {
		r.mu.Lock()
		ok, changed := holds(r.current, time.Now()), r.changed
		r.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-time.After(renewRetry.Cap): // a clock that was set back may make it valid again
		case <-ctx.Done():
			return fmt.Errorf("no %s that is valid: %w", r.cfg.Name, ctx.Err())
		}
	}
}

// Wake makes Run check Wanted again. It never blocks.
func (r *Rotation) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run maintains the certificate until ctx is done.
func (r *Rotation) Run(ctx context.Context) error {
	retry := renewRetry.DelayFunc()
	for ctx.Err() == nil {
		wanted := r.cfg.Wanted()
		sleep := recheckPeriod
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
				sleep, retry = minPeriod, renewRetry.DelayFunc()
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

// untilDue returns the time until the next request.
func (r *Rotation) untilDue(wanted *x509.CertificateRequest) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !holds(r.current, time.Now()) || !r.cfg.Covers(r.current.Leaf, wanted) {
		return 0
	}
	return time.Until(r.due)
}

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
	// In any case, another request needs another key.
	if err := errors.Join(err, r.cfg.Store.forgetPending()); err != nil {
		return err
	}
	r.schedule(c)
	r.cfg.Log.Info("new "+r.cfg.Name, "subject", c.Leaf.Subject.String(), "until", c.Leaf.NotAfter, "file", r.cfg.Store.Path())
	r.cfg.Changed()
	return nil
}

// report logs a repeated failure once.
func (r *Rotation) report(err error) {
	switch {
	case err == nil:
		r.lastLogged = ""
	case err.Error() != r.lastLogged:
		r.cfg.Log.Warn("no new "+r.cfg.Name+" yet, trying again", "error", err)
		r.lastLogged = err.Error()
	}
}

// CoversNames reports whether a certificate is for exactly the subject, names and addresses of a
// request.
func CoversNames(leaf *x509.Certificate, wanted *x509.CertificateRequest) bool {
	return leaf.Subject.CommonName == wanted.Subject.CommonName && slices.Equal(leaf.Subject.Organization, wanted.Subject.Organization) &&
		isFor(leaf, wanted.DNSNames, wanted.IPAddresses)
}

// isFor reports whether a certificate is for exactly these names and addresses.
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
