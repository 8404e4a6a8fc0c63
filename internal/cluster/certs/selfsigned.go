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
	// selfSignedLife is how long after it was made a certificate ends. It belongs to the form by
	// which isSelfMade knows one.
	selfSignedLife = 365 * 24 * time.Hour
	// renewBefore is how long before its end a self-signed certificate is replaced.
	renewBefore = 30 * 24 * time.Hour
)

// ensureSelfSigned makes the pair unless there is one that holds for a while, and for the addresses
// that the node has now. Any other than one of our own making is left alone.
func (s *Serving) ensureSelfSigned(now time.Time) error {
	names := s.names()
	// The leaf in force is asked first: every handshake comes by here.
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

// certNames are what a self-signed certificate is for.
type certNames struct {
	dns []string
	ips []net.IP
}

// names returns what a self-signed certificate is for now.
func (s *Serving) names() certNames {
	if ip := net.ParseIP(s.hostname); ip != nil {
		return certNames{ips: append([]net.IP{ip}, s.ips()...)}
	}
	return certNames{dns: []string{s.hostname}, ips: s.ips()}
}

// heldBy says whether a certificate is for these names and no others, and holds for a while.
func (n certNames) heldBy(leaf *x509.Certificate, now time.Time) bool {
	return now.Before(leaf.NotAfter.Add(-renewBefore)) && isFor(leaf, n.dns, n.ips)
}

// isSelfMade says whether makeSelfSigned has made a certificate.
func isSelfMade(leaf *x509.Certificate) bool {
	name := leaf.Subject.CommonName
	return bytes.Equal(leaf.RawIssuer, leaf.RawSubject) && strings.HasSuffix(name, madeAt(leaf.NotAfter.Add(-selfSignedLife)))
}

// madeAt is the end of the name of a certificate that was made then.
func madeAt(now time.Time) string { return fmt.Sprintf("@%d", now.Unix()) }

// replaceable says whether a new pair is to be made: there is none, or one of our making that ends
// soon, is for other names, or is incomplete.
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
	// The two files are not written at once: a crash between them leaves a pair that does not fit.
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
		NotBefore:             time.Unix(0, 0), // clocks may be behind, and the host's own may be ahead today and set back tomorrow
		NotAfter:              now.Add(selfSignedLife),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true, // so that a client can trust this very certificate
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
