package auth

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	day = 24 * time.Hour
	// authorityLife is the validity of the authority's certificate. It is renewed, with the same
	// key, after half of it, so that clients with the old one continue to trust the server.
	authorityLife = 10 * 365 * day
	servingLife   = 365 * day
	// servingRenewBefore is how long before its expiry the serving certificate is renewed.
	servingRenewBefore = 30 * day
	// maxClientLife and minClientLife bound the validity of client certificates.
	maxClientLife = 10 * 365 * day
	minClientLife = time.Minute
)

// The names and addresses of the server on its machine and from pods.
var (
	servingNames = []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"}
	servingIPs   = []net.IP{net.IPv4(127, 0, 0, 1).To4(), net.IPv6loopback}
)

// Authority signs the certificates of the server and of its clients. It is safe for concurrent use.
type Authority struct {
	dir string

	mu      sync.Mutex // held while a certificate is created
	ca      atomic.Pointer[authorityPair]
	serving atomic.Pointer[tls.Certificate]
}

type authorityPair struct {
	cert *x509.Certificate
	pem  []byte // cert only
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

// OpenAuthority reads the authority of the directory, and creates both if they do not exist.
func OpenAuthority(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("authority of the local API: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil { // an existing one may be accessible to others
		return nil, fmt.Errorf("authority of the local API: %w", err)
	}
	a := &Authority{dir: dir}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := locked(dir, func() error { return a.ensureCA(time.Now()) }); err != nil {
		return nil, fmt.Errorf("authority of the local API: %w", err)
	}
	return a, nil
}

// ensureCA creates the authority, or renews its certificate after half its validity. mu is held.
func (a *Authority) ensureCA(now time.Time) error {
	if p := a.ca.Load(); p != nil && !halfOver(p.cert, now) {
		return nil
	}
	path := filepath.Join(a.dir, "ca.pem")
	pair, err := readPair(path, newAuthority)
	if errors.Is(err, fs.ErrNotExist) {
		key, err := newKey()
		if err != nil {
			return err
		}
		return a.makeCA(path, key, now)
	}
	if err != nil {
		return err
	}
	if err := checkCA(path, pair); err != nil {
		return err
	}
	cert, key := pair.Leaf, pair.PrivateKey.(*ecdsa.PrivateKey)
	if halfOver(cert, now) {
		return a.makeCA(path, key, now)
	}
	a.setCA(cert, key)
	return nil
}

// newAuthority is the remedy for a damaged authority.
const newAuthority = "restore it from a backup, or remove it to have a new authority made: kubeconfigs of the old one then end to work"

func checkCA(path string, pair *tls.Certificate) error {
	if pair.Leaf.IsCA {
		return nil
	}
	return fmt.Errorf("%s: its certificate is not that of an authority; %s", path, newAuthority)
}

// halfOver reports whether less than half of the authority's validity remains.
func halfOver(cert *x509.Certificate, now time.Time) bool {
	return now.After(cert.NotAfter.Add(-authorityLife / 2))
}

func (a *Authority) makeCA(path string, key *ecdsa.PrivateKey, now time.Time) error {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "berth"}, NotAfter: now.Add(authorityLife),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
		MaxPathLenZero: true,
	}
	der, err := sign(template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	if err := writePair(path, der, key); err != nil {
		return err
	}
	a.setCA(cert, key)
	return nil
}

func (a *Authority) setCA(cert *x509.Certificate, key *ecdsa.PrivateKey) {
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	a.ca.Store(&authorityPair{cert: cert, pem: encodeCertificate(cert.Raw), key: key, pool: pool})
}

// sign creates a certificate with a random serial number. It is valid from 1970 on, since the
// machine's clock may be ahead now and set back later.
func sign(template, parent *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber, template.NotBefore = serial, time.Unix(0, 0)
	return x509.CreateCertificate(rand.Reader, template, parent, public, key)
}

// Certificate returns the authority's certificate in PEM form.
func (a *Authority) Certificate() []byte { return a.ca.Load().pem }

// Client creates a client certificate for a user and its groups, valid for life, and its key, both
// in PEM form.
func (a *Authority) Client(user string, groups []string, life time.Duration) (certificate, key []byte, err error) {
	switch {
	case user == "":
		err = errors.New("a user needs a name")
	case life < minClientLife || life > maxClientLife:
		err = fmt.Errorf("a certificate for %v: it may be for %v to %v", life, minClientLife, maxClientLife)
	}
	for _, text := range append([]string{user}, groups...) {
		if err == nil {
			err = checkName(text)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("client certificate of %q: %w", user, err)
	}
	private, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	ca := a.ca.Load()
	der, err := sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: groups}, NotAfter: time.Now().Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}, ca.cert, &private.PublicKey, ca.key)
	if err != nil {
		return nil, nil, err
	}
	key, err = encodeKey(private)
	return encodeCertificate(der), key, err
}

func (a *Authority) known(chain []*x509.Certificate) (*User, error) {
	leaf := chain[0]
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: a.ca.Load().pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return nil, err
	}
	if leaf.Subject.CommonName == "" {
		return nil, errors.New("the certificate names no user")
	}
	return certificateUser(leaf), nil
}

// GetCertificate is for tls.Config. It returns the serving certificate, which it creates or renews
// if due. If that fails, it returns the old one.
func (a *Authority) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	err := a.Health()
	if c := a.serving.Load(); c != nil {
		return c, nil
	}
	return nil, err
}

// Health creates and renews certificates if due, and returns the error if that fails.
func (a *Authority) Health() error {
	now := time.Now()
	if p := a.ca.Load(); !halfOver(p.cert, now) && a.serves(a.serving.Load(), now) {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return locked(a.dir, func() error {
		if err := a.ensureCA(now); err != nil {
			return fmt.Errorf("authority of the local API: %w", err)
		}
		if err := a.ensureServing(now); err != nil {
			return fmt.Errorf("serving certificate of the local API: %w", err)
		}
		return nil
	})
}

// serves reports whether a serving certificate is signed by this authority, has the required names,
// and is not due for renewal.
func (a *Authority) serves(c *tls.Certificate, now time.Time) bool {
	return c != nil && now.Before(c.Leaf.NotAfter.Add(-servingRenewBefore)) && c.Leaf.CheckSignatureFrom(a.ca.Load().cert) == nil &&
		slices.Equal(c.Leaf.DNSNames, servingNames) && slices.EqualFunc(c.Leaf.IPAddresses, servingIPs, net.IP.Equal)
}

// ensureServing reads the serving certificate, and creates one if it is unusable, as it can be
// replaced without loss. mu is held.
func (a *Authority) ensureServing(now time.Time) error {
	if a.serves(a.serving.Load(), now) {
		return nil
	}
	path := filepath.Join(a.dir, "serving.pem")
	if pair, err := readPair(path, ""); err == nil && a.serves(pair, now) {
		a.serving.Store(pair)
		return nil
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	ca := a.ca.Load()
	der, err := sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "kubernetes"}, NotAfter: now.Add(servingLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: servingNames, IPAddresses: servingIPs, BasicConstraintsValid: true,
	}, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	a.serving.Store(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf})
	return writePair(path, der, key)
}

// TLS returns the configuration of the HTTPS listener. A missing or foreign client certificate does
// not fail the handshake but gets a 401.
func (a *Authority) TLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: a.GetCertificate, ClientAuth: tls.RequestClientCert,
	}
}
