package certs_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/cluster/certs"
	"berth/internal/record/events/messagestest"
)

var discard = slog.New(slog.DiscardHandler)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	return authority{sign(t, template, template, key, key), key}
}

func sign(t *testing.T, template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// issue signs a certificate for the usage, that has ended if life is negative.
func (a authority) issue(t *testing.T, name string, usage x509.ExtKeyUsage, life time.Duration) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(life),
	}
	return sign(t, template, a.cert, key, a.key), key
}

func write(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func writeKey(t *testing.T, path string, key *ecdsa.PrivateKey) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, "PRIVATE KEY", der)
}

func TestServingFromFiles(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	s, err := certs.NewServing(certs.ServingConfig{CertFile: certFile, KeyFile: keyFile, Log: discard})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.GetCertificate(nil)
	messagestest.SawError(err)
	if err == nil || err.Error() != "no serving certificate available for the kubelet" {
		t.Errorf("without files: %v", err)
	}
	if err := s.Load(); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), certFile) {
		t.Errorf("without files, Load: %v", err)
	}
	ca := newAuthority(t, "ca")
	first, firstKey := ca.issue(t, "first", x509.ExtKeyUsageServerAuth, time.Hour)
	second, secondKey := ca.issue(t, "second", x509.ExtKeyUsageServerAuth, time.Hour)
	shows := func(want *x509.Certificate) {
		t.Helper()
		got, err := s.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		if !got.Leaf.Equal(want) {
			t.Errorf("shows %s, want %s", got.Leaf.Subject, want.Subject)
		}
	}
	write(t, certFile, "CERTIFICATE", first.Raw)
	writeKey(t, keyFile, firstKey)
	shows(first)
	write(t, certFile, "CERTIFICATE", second.Raw) // its key is not there yet
	shows(first)
	writeKey(t, keyFile, secondKey)
	shows(second)
	if err := os.Remove(certFile); err != nil {
		t.Fatal(err)
	}
	shows(second)
}

func TestServingHealth(t *testing.T) {
	ca := newAuthority(t, "ca")
	for name, tt := range map[string]struct {
		life time.Duration // from now; it began two hours ago
		want string
	}{
		"holds":     {time.Hour, ""},
		"ends soon": {10 * time.Minute, "the serving certificate ends on "},
		"has ended": {-time.Minute, "the serving certificate ended on "},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
			s, err := certs.NewServing(certs.ServingConfig{CertFile: certFile, KeyFile: keyFile, Log: discard})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Health(); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("without files: %v", err)
			}
			cert, key := ca.issue(t, "node", x509.ExtKeyUsageServerAuth, tt.life)
			write(t, certFile, "CERTIFICATE", cert.Raw)
			writeKey(t, keyFile, key)
			if err := s.Health(); (err == nil) != (tt.want == "") || err != nil && !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestServingNeedsBothFiles(t *testing.T) {
	if _, err := certs.NewServing(certs.ServingConfig{CertFile: "/a", Log: discard}); err == nil || !strings.Contains(err.Error(), "tlsPrivateKeyFile") {
		t.Errorf("got %v", err)
	}
}

func TestSelfSigned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "pki")
		cfg := certs.ServingConfig{Dir: dir, Hostname: "node-1", IPs: func() []net.IP { return []net.IP{net.IPv4(192, 0, 2, 1)} }, Log: discard}
		newServing := func() *certs.Serving {
			t.Helper()
			s, err := certs.NewServing(cfg)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		leaf := func(s *certs.Serving) *x509.Certificate {
			t.Helper()
			c, err := s.GetCertificate(nil)
			if err != nil {
				t.Fatal(err)
			}
			return c.Leaf
		}
		s := newServing()
		first := leaf(s)
		for _, name := range []string{"node-1", "192.0.2.1"} {
			if err := first.VerifyHostname(name); err != nil {
				t.Error(err)
			}
		}
		st, err := os.Stat(filepath.Join(dir, "kubelet.key"))
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("key: %v, %v; want mode 0600", st.Mode(), err)
		}
		if !leaf(newServing()).Equal(first) {
			t.Error("the next agent made a new certificate")
		}

		// A crash between the writing of the two files.
		writeKey(t, filepath.Join(dir, "kubelet.key"), newKey(t))
		second := leaf(newServing())
		if second.Equal(first) {
			t.Error("a key that does not fit was kept")
		}
		time.Sleep(340 * 24 * time.Hour)
		third := leaf(s)
		if third.Equal(first) || third.Equal(second) || third.NotAfter.Before(time.Now().Add(300*24*time.Hour)) {
			t.Errorf("shortly before its end: valid until %v at %v", third.NotAfter, time.Now())
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 2 {
			t.Errorf("left behind: %v, %v", entries, err)
		}
	})
}

// A node that gets other addresses shows a certificate for them from the next handshake on, and one
// that gets them while no agent runs does so too. What is connected already goes on.
func TestSelfSignedFollowsAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ips := []net.IP{net.IPv4(192, 0, 2, 1)}
		cfg := certs.ServingConfig{Dir: t.TempDir(), Hostname: "node-1", IPs: func() []net.IP { return ips }, Log: discard}
		s, err := certs.NewServing(cfg)
		if err != nil {
			t.Fatal(err)
		}
		first := dialServing(t, s)
		first.shows(t, "node-1", "192.0.2.1")
		before := first.leaf()
		time.Sleep(time.Hour)
		if again := dialServing(t, s); !again.leaf().Equal(before) {
			t.Error("another certificate for the same addresses")
		}

		ips = []net.IP{net.IPv4(192, 0, 2, 7), net.ParseIP("2001:db8::7")}
		second := dialServing(t, s)
		second.shows(t, "node-1", "192.0.2.7", "2001:db8::7")
		if err := second.leaf().VerifyHostname("192.0.2.1"); err == nil {
			t.Error("the certificate is still for the address that the node had")
		}
		first.echo(t)

		ips = []net.IP{net.ParseIP("2001:db8::7"), net.IPv4(192, 0, 2, 7)}
		if again := dialServing(t, s); !again.leaf().Equal(second.leaf()) {
			t.Error("another certificate for the same addresses in another order")
		}
		ips = []net.IP{net.IPv4(192, 0, 2, 8)}
		next, err := certs.NewServing(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := next.Load(); err != nil {
			t.Fatal(err)
		}
		dialServing(t, next).shows(t, "node-1", "192.0.2.8")
	})
}

// connection is one to a server that says back what it reads.
type connection struct{ *tls.Conn }

func dialServing(t *testing.T, s *certs.Serving) connection {
	t.Helper()
	near, far := net.Pipe()
	go func() {
		server := tls.Server(far, &tls.Config{GetCertificate: s.GetCertificate})
		_, _ = io.Copy(server, server) // ends with the connection
	}()
	c := connection{tls.Client(near, &tls.Config{InsecureSkipVerify: true})}
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = near.Close() })
	c.echo(t)
	return c
}

func (c connection) leaf() *x509.Certificate { return c.ConnectionState().PeerCertificates[0] }

func (c connection) shows(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := c.leaf().VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
}

func (c connection) echo(t *testing.T) {
	t.Helper()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// A pair that somebody signed for himself and put where ours would be is his, whatever it is for
// and however soon it ends.
func TestSelfSignedLeavesTheUsersOwnAlone(t *testing.T) {
	dir := t.TempDir()
	own := newAuthority(t, "user@1700000000")
	write(t, filepath.Join(dir, "kubelet.crt"), "CERTIFICATE", own.cert.Raw)
	writeKey(t, filepath.Join(dir, "kubelet.key"), own.key)
	s, err := certs.NewServing(certs.ServingConfig{Dir: dir, Hostname: "node-1", IPs: func() []net.IP { return []net.IP{net.IPv4(192, 0, 2, 1)} }, Log: discard})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, err := s.GetCertificate(nil); err != nil || !got.Leaf.Equal(own.cert) {
			t.Errorf("shows %v, %v", got.Leaf.Subject, err)
		}
	}
}

func TestSelfSignedLeavesOthersAlone(t *testing.T) {
	dir := t.TempDir()
	certFile := filepath.Join(dir, "kubelet.crt")
	c, key := newAuthority(t, "ca").issue(t, "given", x509.ExtKeyUsageServerAuth, -time.Minute)
	write(t, certFile, "CERTIFICATE", c.Raw)
	writeKey(t, filepath.Join(dir, "kubelet.key"), key)
	s, err := certs.NewServing(certs.ServingConfig{Dir: dir, Hostname: "node-1", Log: discard})
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	if !got.Leaf.Equal(c) {
		t.Errorf("shows %s", got.Leaf.Subject)
	}
	if err := os.WriteFile(certFile, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err = certs.NewServing(certs.ServingConfig{Dir: dir, Hostname: "node-1", Log: discard}); err != nil {
		t.Fatal(err)
	}
	if err := s.Load(); err == nil || !strings.Contains(err.Error(), certFile) {
		t.Errorf("nonsense in the file: %v", err)
	}
	if b, err := os.ReadFile(certFile); err != nil || !bytes.Equal(b, []byte("nonsense")) {
		t.Errorf("the file was replaced: %s, %v", b, err)
	}
}

func TestClientCA(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.crt")
	old, other := newAuthority(t, "old"), newAuthority(t, "other")
	ca := certs.NewClientCA(file, discard)
	if err := ca.Load(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	client, _ := old.issue(t, "alice", x509.ExtKeyUsageClientAuth, time.Hour)
	if err := ca.Verify([]*x509.Certificate{client}); err == nil {
		t.Error("verified without an authority")
	}
	write(t, file, "CERTIFICATE", old.cert.Raw)
	server, _ := old.issue(t, "server", x509.ExtKeyUsageServerAuth, time.Hour)
	ended, _ := old.issue(t, "ended", x509.ExtKeyUsageClientAuth, -time.Minute)
	stranger, _ := other.issue(t, "stranger", x509.ExtKeyUsageClientAuth, time.Hour)
	for _, c := range []struct {
		chain []*x509.Certificate
		want  string // part of the error
	}{
		{[]*x509.Certificate{client}, ""},
		{nil, "no client certificate"},
		{[]*x509.Certificate{server}, "incompatible key usage"},
		{[]*x509.Certificate{ended}, "expired"},
		{[]*x509.Certificate{stranger}, "unknown authority"},
		{[]*x509.Certificate{stranger, other.cert}, "unknown authority"},
	} {
		err := ca.Verify(c.chain)
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: got %v, want %q", c.chain, err, c.want)
		}
	}
	write(t, file, "CERTIFICATE", other.cert.Raw)
	if err := ca.Verify([]*x509.Certificate{stranger}); err != nil {
		t.Errorf("after the authority was replaced: %v", err)
	}
	if err := ca.Verify([]*x509.Certificate{client}); err == nil {
		t.Error("the old authority is still trusted")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := ca.Verify([]*x509.Certificate{stranger}); err != nil {
		t.Errorf("while the file is missing: %v", err)
	}
}
