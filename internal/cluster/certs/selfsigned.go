package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"berth/internal/checkpoint"
)

const (
	// selfSignedLife is the lifetime of a self-signed certificate. isSelfMade depends on it.
	selfSignedLife = 365 * 24 * time.Hour
	// renewBefore is how long before it expires a self-signed certificate is replaced.
	renewBefore = 30 * 24 * time.Hour
)

// ensureSelfSigned creates the pair unless there is one that is valid for a while and for the
// node's current addresses. A pair that this package did not create is never replaced.
func (s *Serving) ensureSelfSigned(now time.Time) error {
	names := s.names()
	// The current leaf is checked first, as every handshake calls this.
	if p := s.now.Load(); p != nil && (!isSelfMade(p.tls.Leaf) || names.heldBy(p.tls.Leaf, now)) {
		return nil
	}
	if !s.renewing.TryLock() {
		return nil
	}
	defer s.renewing.Unlock()
	replace, err := s.replaceable(names, now)
	if err != nil || !replace {
		return err
	}
	if err := s.makeSelfSigned(names, now); err != nil {
		return fmt.Errorf("self-signed serving certificate: %w", err)
	}
	s.log.Info("self-signed serving certificate made", "file", s.cert, "hostname", s.hostname, "addresses", names.ips)
	return nil
}

// certNames are the names and addresses of a self-signed certificate.
type certNames struct {
	dns []string
	ips []net.IP
}

// names returns the current names and addresses for a self-signed certificate.
func (s *Serving) names() certNames {
	if ip := net.ParseIP(s.hostname); ip != nil {
		return certNames{ips: append([]net.IP{ip}, s.ips()...)}
	}
	return certNames{dns: []string{s.hostname}, ips: s.ips()}
}

// heldBy reports whether a certificate is for exactly these names, and valid for a while.
func (n certNames) heldBy(leaf *x509.Certificate, now time.Time) bool {
	return now.Before(leaf.NotAfter.Add(-renewBefore)) && isFor(leaf, n.dns, n.ips)
}

// isSelfMade reports whether makeSelfSigned created a certificate.
func isSelfMade(leaf *x509.Certificate) bool {
	name := leaf.Subject.CommonName
	return bytes.Equal(leaf.RawIssuer, leaf.RawSubject) && strings.HasSuffix(name, madeAt(leaf.NotAfter.Add(-selfSignedLife)))
}

// madeAt returns the suffix of a certificate's common name, with its creation time.
func madeAt(now time.Time) string { return fmt.Sprintf("@%d", now.Unix()) }

// replaceable reports whether a new pair is to be created: there is none, or a self-made one
// expires soon, is for other names, or is incomplete.
func (s *Serving) replaceable(names certNames, now time.Time) (bool, error) {
	b, err := readPEM(s.cert)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("serving certificate: %w", err)
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return false, fmt.Errorf("serving certificate: %s holds no certificate in PEM form: remove it, or put one there", s.cert)
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return false, fmt.Errorf("serving certificate: %s: %w", s.cert, err)
	}
	if !isSelfMade(leaf) {
		return false, nil
	}
	if !names.heldBy(leaf, now) {
		return true, nil
	}
	// The two files are not written atomically: a crash between them leaves a pair that does not
	// match.
	_, err = readPair(s.cert, s.key)
	return err != nil, nil
}

func (s *Serving) makeSelfSigned(names certNames, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: s.hostname + madeAt(now)},
		NotBefore:             time.Unix(0, 0), // clocks may be slow, and the host's may be set back later
		NotAfter:              now.Add(selfSignedLife),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true, // so that a client can trust this certificate
		DNSNames:              names.dns,
		IPAddresses:           names.ips,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	block, err := encodeKey(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.cert), 0o755); err != nil {
		return err
	}
	return checkpoint.WriteAll(
		checkpoint.Content{Path: s.key, Mode: 0o600, Bytes: pem.EncodeToMemory(block)},
		checkpoint.Content{Path: s.cert, Mode: 0o644, Bytes: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})},
	)
}
