package certs_test

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/cluster/certs"
)

// selfSigned returns the certificate that a node shows which finds its pair in dir.
func selfSigned(t *testing.T, dir string) *x509.Certificate {
	t.Helper()
	s, err := certs.NewServing(certs.ServingConfig{
		Dir: dir, Hostname: "node-1", IPs: func() []net.IP { return []net.IP{net.IPv4(192, 0, 2, 1)} }, Log: discard,
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	return c.Leaf
}

// A certificate that was made while the host's clock was years ahead is valid when that is right.
func TestSelfSignedByAClockThatWasAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leaf := selfSigned(t, t.TempDir())
		roots := x509.NewCertPool()
		roots.AddCert(leaf)
		for _, at := range []time.Time{time.Now(), time.Now().AddDate(-10, 0, 0)} {
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "node-1", CurrentTime: at}); err != nil {
				t.Error(err)
			}
		}
	})
}

// Agents before this one made certificates that began an hour before they were made. They are known
// as their own.
func TestSelfSignedKnowsEarlierForms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, key, now := t.TempDir(), newKey(t), time.Now()
		earlier := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: fmt.Sprintf("node-1@%d", now.Unix())},
			NotBefore: now.Add(-time.Hour), NotAfter: now.Add(365 * 24 * time.Hour), DNSNames: []string{"node-1"}, // without the address
		}
		der, err := x509.CreateCertificate(rand.Reader, earlier, earlier, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "kubelet.crt"), "CERTIFICATE", der)
		writeKey(t, filepath.Join(dir, "kubelet.key"), key)
		if leaf := selfSigned(t, dir); leaf.SerialNumber.Cmp(earlier.SerialNumber) == 0 {
			t.Error("one of its own making that lacks an address is not replaced")
		}
	})
}
