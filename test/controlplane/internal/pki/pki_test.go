package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
)

func TestIssue(t *testing.T) {
	authority := newAuthority(t, "kubernetes")
	tests := map[string]struct {
		subject Subject
		usage   x509.ExtKeyUsage
		host    string
		ok      bool
	}{
		"client":                      {subject: Subject{Name: "admin", Groups: []string{"system:masters"}}, usage: x509.ExtKeyUsageClientAuth, ok: true},
		"client is no server":         {subject: Subject{Name: "admin"}, usage: x509.ExtKeyUsageServerAuth},
		"server by name":              {subject: Subject{Name: "api", Hosts: []string{"localhost", "127.0.0.1"}}, usage: x509.ExtKeyUsageServerAuth, host: "localhost", ok: true},
		"server by address":           {subject: Subject{Name: "api", Hosts: []string{"localhost", "127.0.0.1"}}, usage: x509.ExtKeyUsageServerAuth, host: "127.0.0.1", ok: true},
		"server may also be a client": {subject: Subject{Name: "etcd", Hosts: []string{"127.0.0.1"}}, usage: x509.ExtKeyUsageClientAuth, ok: true},
		"server under another name":   {subject: Subject{Name: "api", Hosts: []string{"localhost"}}, usage: x509.ExtKeyUsageServerAuth, host: "api"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cert := certificate(t, issue(t, authority, tt.subject))
			_, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: pool(authority), DNSName: tt.host, KeyUsages: []x509.ExtKeyUsage{tt.usage}})
			if (err == nil) != tt.ok {
				t.Errorf("Verify = %v, want ok = %v", err, tt.ok)
			}
			if got := cert.Leaf.Subject; got.CommonName != tt.subject.Name || !slices.Equal(got.Organization, tt.subject.Groups) {
				t.Errorf("subject is %v, want %v", got, tt.subject)
			}
			if !cert.Leaf.NotAfter.Before(authority.cert.NotAfter) {
				t.Errorf("the certificate ends at %v, not before its authority at %v", cert.Leaf.NotAfter, authority.cert.NotAfter)
			}
		})
	}
}

// A server that asks for certificates of one authority takes those, and none of another authority
// of the same name.
func TestAuthoritiesAreApart(t *testing.T) {
	authority, stranger := newAuthority(t, "kubernetes"), newAuthority(t, "kubernetes")
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{certificate(t, issue(t, authority, Subject{Name: "api", Hosts: []string{"127.0.0.1"}}))},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    pool(authority),
	}
	server.StartTLS()
	defer server.Close()

	get := func(from *Authority) (string, error) {
		transport := &http.Transport{TLSClientConfig: &tls.Config{
			RootCAs:      pool(authority),
			Certificates: []tls.Certificate{certificate(t, issue(t, from, Subject{Name: "admin"}))},
		}}
		defer transport.CloseIdleConnections()
		resp, err := (&http.Client{Transport: transport}).Get(server.URL)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	}
	if got, err := get(authority); got != "admin" || err != nil {
		t.Errorf("with a certificate of the authority: %q, %v, want admin", got, err)
	}
	var refused *net.OpError
	if got, err := get(stranger); !errors.As(err, &refused) {
		t.Errorf("with a certificate of another authority: %q, %v, want a refused handshake", got, err)
	}
}

func TestNewKey(t *testing.T) {
	first, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	second, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(first, second) {
		t.Error("two keys are the same")
	}
}

func newAuthority(t *testing.T, name string) *Authority {
	t.Helper()
	a, err := NewAuthority(name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func issue(t *testing.T, a *Authority, s Subject) Pair {
	t.Helper()
	p, err := a.Issue(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func certificate(t *testing.T, p Pair) tls.Certificate {
	t.Helper()
	cert, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func pool(a *Authority) *x509.CertPool {
	p := x509.NewCertPool()
	p.AppendCertsFromPEM(a.Cert)
	return p
}
