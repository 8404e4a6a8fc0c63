package certs

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"berth/internal/health"
)

// ServingConfig configures the source of the serving certificate.
type ServingConfig struct {
	// CertFile and KeyFile are tlsCertFile and tlsPrivateKeyFile; both or neither.
	CertFile, KeyFile string
	// Dir is the directory of a self-signed pair, used without files (--cert-dir).
	Dir string
	// Hostname and IPs are the names of a self-signed certificate. IPs is called at each handshake;
	// nil: none. If the addresses change, the pair is replaced.
	Hostname string
	IPs      func() []net.IP
	Log      *slog.Logger
}

// Serving is the serving certificate of the HTTPS port.
type Serving struct {
	cert, key  string
	selfSigned bool
	hostname   string
	ips        func() []net.IP
	log        *slog.Logger

	now        atomic.Pointer[pair]
	lastLogged atomic.Pointer[string] // the failure that was logged last, nil after a success
	renewing   sync.Mutex             // held while a self-signed pair is created; others use the existing one meanwhile
}

type pair struct {
	cert, key stamp
	tls       *tls.Certificate
}

// NewServing returns the serving certificate, which Load or the first handshake reads.
func NewServing(cfg ServingConfig) (*Serving, error) {
	s := &Serving{cert: cfg.CertFile, key: cfg.KeyFile, hostname: cfg.Hostname, ips: cfg.IPs, log: cfg.Log}
	if s.ips == nil {
		s.ips = func() []net.IP { return nil }
	}
	switch {
	case cfg.CertFile != "" && cfg.KeyFile != "":
	case cfg.CertFile != "" || cfg.KeyFile != "":
		return nil, fmt.Errorf("tlsCertFile %q and tlsPrivateKeyFile %q: both are needed, or neither", cfg.CertFile, cfg.KeyFile)
	case cfg.Dir == "" || cfg.Hostname == "":
		return nil, errors.New("serving certificate: without files, a directory and a host name are needed")
	default:
		s.selfSigned = true
		s.cert, s.key = filepath.Join(cfg.Dir, "kubelet.crt"), filepath.Join(cfg.Dir, "kubelet.key")
	}
	return s, nil
}

// Load reads the files if they have changed. It creates a self-signed pair, if configured, unless
// there is a valid one for the current addresses. The error names the file; the previous pair stays
// in use, in memory or on disk.
func (s *Serving) Load() error {
	var notMade error
	if s.selfSigned {
		notMade = s.ensureSelfSigned(time.Now())
	}
	if err := s.read(); err != nil {
		return cmp.Or(notMade, err) // the second error follows from the first
	}
	return notMade
}

// read reads the files if they have changed.
func (s *Serving) read() error {
	cert, err := stampOf(s.cert)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	key, err := stampOf(s.key)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	old := s.now.Load()
	if old != nil && old.cert == cert && old.key == key {
		return nil
	}
	c, err := readPair(s.cert, s.key)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	s.now.Store(&pair{cert: cert, key: key, tls: c})
	if old != nil {
		s.log.Info("serving certificate replaced", "file", s.cert, "until", c.Leaf.NotAfter)
	}
	return nil
}

// GetCertificate implements tls.Config.GetCertificate: it returns the newest certificate that could
// be read.
func (s *Serving) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	// While the two files are being written, they do not match: the old pair is used until they do.
	err := s.Load()
	p := s.now.Load()
	if p != nil || !errors.Is(err, fs.ErrNotExist) { // the requester of a pending certificate logs it
		s.note(err)
	}
	if p == nil {
		return nil, errors.New("no serving certificate available for the kubelet")
	}
	return p.tls, nil
}

// note logs a repeated failure once.
func (s *Serving) note(err error) {
	if err == nil {
		s.lastLogged.Store(nil)
		return
	}
	text := err.Error()
	if last := s.lastLogged.Swap(&text); last == nil || *last != text {
		s.log.Warn("serving certificate not read or not made; the last one stays in force", "error", err)
	}
}

// servingEndsSoon is how long before a certificate expires this is reported; at most the last tenth
// of its life.
const servingEndsSoon = 7 * 24 * time.Hour

// Health returns an error if the certificate cannot be read, has expired or expires soon. It first
// replaces a self-signed one that is due.
func (s *Serving) Health() error {
	err := s.Load()
	p := s.now.Load()
	if p == nil {
		return err
	}
	leaf, now := p.tls.Leaf, time.Now()
	warnAt := leaf.NotAfter.Add(-min(servingEndsSoon, leaf.NotAfter.Sub(leaf.NotBefore)/10))
	switch {
	case !now.Before(leaf.NotAfter):
		return endOf("serving certificate", leaf)
	case now.After(warnAt):
		return health.Since(fmt.Errorf("the serving certificate ends on %s: %s", leaf.NotAfter.Format(time.RFC3339), s.cert), warnAt)
	}
	return err
}

func readPair(certFile, keyFile string) (*tls.Certificate, error) {
	cert, err := readPEM(certFile)
	if err != nil {
		return nil, err
	}
	key, err := readPEM(keyFile)
	if err != nil {
		return nil, err
	}
	c, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", certFile, keyFile, err)
	}
	return &c, nil
}
