package certs

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
)

// ClientCA verifies client certificates against the CAs of a file
// (authentication.x509.clientCAFile).
type ClientCA struct {
	file string
	log  *slog.Logger
	now  atomic.Pointer[authorities]
}

type authorities struct {
	stamp stamp
	pool  *x509.CertPool
}

// NewClientCA returns the CAs of the file, which Load or the first Verify reads.
func NewClientCA(file string, log *slog.Logger) *ClientCA { return &ClientCA{file: file, log: log} }

// Load reads the file if it has changed. The error names the file; the CAs that were read before
// stay in use.
func (c *ClientCA) Load() error {
	s, err := stampOf(c.file)
	if err != nil {
		return fmt.Errorf("client CA: %w", err)
	}
	old := c.now.Load()
	if old != nil && old.stamp == s {
		return nil
	}
	b, err := readPEM(c.file)
	if err != nil {
		return fmt.Errorf("client CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return fmt.Errorf("client CA: %s holds no certificate in PEM form", c.file)
	}
	c.now.Store(&authorities{stamp: s, pool: pool})
	if old != nil {
		c.log.Info("client CA replaced", "file", c.file)
	}
	return nil
}

// Verify returns an error unless the chain, which begins with the client's certificate, is signed
// by one of the CAs and valid for client authentication.
func (c *ClientCA) Verify(chain []*x509.Certificate) error {
	if len(chain) == 0 {
		return errors.New("no client certificate")
	}
	if err := c.Load(); err != nil {
		c.log.Warn("client CA not read; the last one stays in force", "error", err)
	}
	known := c.now.Load()
	if known == nil {
		return errors.New("client CA: none could be read")
	}
	o := x509.VerifyOptions{Roots: known.pool, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, between := range chain[1:] {
		o.Intermediates.AddCert(between)
	}
	if _, err := chain[0].Verify(o); err != nil {
		return fmt.Errorf("client certificate of %q: %w", chain[0].Subject, err)
	}
	return nil
}
