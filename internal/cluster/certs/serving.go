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

// ServingConfig says where the serving certificate comes from.
type ServingConfig struct {
	// CertFile and KeyFile are tlsCertFile and tlsPrivateKeyFile; both or neither.
	CertFile, KeyFile string
	// Dir is where a self-signed pair is kept when there are no files (--cert-dir).
	Dir string
	// Hostname and IPs are what a self-signed certificate is for. IPs is asked at each handshake;
	// nil: there are none. With other addresses there is another pair.
	Hostname string
	IPs      func() []net.IP
	Log      *slog.Logger
}

// Serving is the certificate that the HTTPS port shows.
type Serving struct {
	cert, key  string
	selfSigned bool
	hostname   string
	ips        func() []net.IP
	log        *slog.Logger

	now      atomic.Pointer[pair]
	noted    atomic.Pointer[string] // the failure that was logged last, nil after a success
	renewing sync.Mutex             // held while a self-signed pair is made; whoever finds it held goes on with what there is
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

// Load reads the files if they changed, and makes a self-signed pair if that is what is wanted and
// there is none that holds, or one for other addresses. The error names the file; the pair of
// before stays in force, in memory or on the disk.
func (s *Serving) Load() error {
	var notMade error
	if s.selfSigned {
		notMade = s.ensureSelfSigned(time.Now())
	}
	if err := s.read(); err != nil {
		return cmp.Or(notMade, err) // the second follows from the first
	}
	return notMade
}

// read reads the files if they changed.
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

// GetCertificate is for tls.Config: the newest certificate that could be read.
func (s *Serving) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	// Between the writing of the two files they do not fit each other: the old pair serves until
	// they do.
	err := s.Load()
	p := s.now.Load()
	if p != nil || !errors.Is(err, fs.ErrNotExist) { // who waits for one that is yet to be signed logs it
		s.note(err)
	}
	if p == nil {
		return nil, errors.New("no serving certificate available for the kubelet")
	}
	return p.tls, nil
}

// note logs a failure once.
func (s *Serving) note(err error) {
	if err == nil {
		s.noted.Store(nil)
		return
	}
	text := err.Error()
	if last := s.noted.Swap(&text); last == nil || *last != text {
		s.log.Warn("serving certificate not read or not made; the last one stays in force", "error", err)
	}
}

// servingEndsSoon is how long before the end of a certificate its end is reported. Of a short life
// it is the last tenth.
const servingEndsSoon = 7 * 24 * time.Hour

// Health says that the certificate cannot be read, has ended or ends soon. It returns nil if it is
// in order. A self-signed one is replaced first if it is time.
func (s *Serving) Health() error {
	err := s.Load()
	p := s.now.Load()
	if p == nil {
		return err
	}
	leaf, now := p.tls.Leaf, time.Now()
	soon := leaf.NotAfter.Add(-min(servingEndsSoon, leaf.NotAfter.Sub(leaf.NotBefore)/10))
	switch {
	case !now.Before(leaf.NotAfter):
		return endOf("serving certificate", leaf)
	case now.After(soon):
		return health.Since(fmt.Errorf("the serving certificate ends on %s: %s", leaf.NotAfter.Format(time.RFC3339), s.cert), soon)
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
