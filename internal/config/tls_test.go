package config

import (
	"crypto/tls"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The suites are those that hardening guides list, with two names of before crypto/tls had them.
func TestTLS(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	writeFile(t, file, []byte(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
tlsMinVersion: VersionTLS13
tlsCipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305, TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305, TLS_RSA_WITH_AES_128_GCM_SHA256]
tlsCurvePreferences: [29, 23]
`))
	k, err := Load(parsed(t, "--config="+file))
	if err != nil {
		t.Fatal(err)
	}
	want := TLS{
		MinVersion: tls.VersionTLS13,
		CipherSuites: []uint16{
			tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_RSA_WITH_AES_128_GCM_SHA256,
		},
		Curves: []tls.CurveID{tls.X25519, tls.CurveP256},
	}
	if diff := cmp.Diff(want, k.TLS()); diff != "" {
		t.Errorf("TLS (-want +got):\n%s", diff)
	}
}
