package server_test

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"testing/synctest"

	"berth/internal/api/server"
)

// handshake returns what a client of TLS with this configuration agrees on with the HTTPS port.
func (k *kubelet) handshake(cfg *tls.Config) (tls.ConnectionState, error) {
	k.t.Helper()
	conn, err := k.secure.dial(k.t.Context())
	if err != nil {
		k.t.Fatal(err)
	}
	defer conn.Close()
	cfg.RootCAs, cfg.ServerName = x509.NewCertPool(), "node"
	cfg.RootCAs.AddCert(k.serving.Leaf)
	client := tls.Client(conn, cfg)
	err = client.HandshakeContext(k.t.Context())
	return client.ConnectionState(), err
}

func TestCurvePreferences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := serveKubelet(t, newNode().handlers(), server.Kubelet{Curves: []tls.CurveID{tls.CurveP384}})
		if _, err := k.handshake(&tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP384}}); err != nil {
			t.Errorf("a client of the curve: %v", err)
		}
		if got, err := k.handshake(&tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}); err == nil {
			t.Errorf("a client of another curve was let in with %v", got.CurveID)
		}
	})
}

// HTTP/2 has a cipher suite that it needs: a port without it still speaks HTTP/1.1.
func TestCipherSuites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		protocols := []string{"h2", "http/1.1"}
		for _, c := range []struct {
			suite    uint16
			protocol string
		}{
			{tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, "http/1.1"},
			{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, "h2"},
		} {
			k := serveKubelet(t, newNode().handlers(), server.Kubelet{CipherSuites: []uint16{c.suite}, Authentication: server.Authentication{Anonymous: true}})
			if a := k.ask(k.secure, "GET", "/healthz", credential{}); a.Status != 200 {
				t.Errorf("%s: %+v", tls.CipherSuiteName(c.suite), a)
			}
			got, err := k.handshake(&tls.Config{MaxVersion: tls.VersionTLS12, NextProtos: protocols})
			if err != nil || got.CipherSuite != c.suite || got.NegotiatedProtocol != c.protocol {
				t.Errorf("%s: agreed on %s, %q, %v; want %q", tls.CipherSuiteName(c.suite), tls.CipherSuiteName(got.CipherSuite), got.NegotiatedProtocol, err, c.protocol)
			}
		}
	})
}
