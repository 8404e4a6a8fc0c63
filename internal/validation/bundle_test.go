package podconfig

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"berth/internal/pod"
)

func TestClusterTrustBundles(t *testing.T) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	anchor := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	const of = "spec.trustBundle: Invalid value: \"<value omitted>\": "
	for _, tt := range []struct{ name, bundle, signer, trust, want string }{
		{"plain", "a", "", "text\n" + anchor, ""},
		{"of a signer", "example.com:s:a", "example.com/s", anchor, ""},
		{"a plain name with a signer", "a", "example.com/s", anchor, `metadata.name: Invalid value: "a": ClusterTrustBundle for signerName example.com/s must be named with prefix example.com:s:`},
		{"a signer's name without one", "example.com:s:a", "", anchor, `metadata.name: Invalid value: "example.com:s:a": ClusterTrustBundle without signer name must not have ":" in its name`},
		{"no signer's name", "a", "s", anchor, `metadata.name: Invalid value: "a": `},
		{"nothing", "a", "", "text", of + "at least one trust anchor must be provided"},
		{"no certificate", "a", "", strings.Replace(anchor, "CERTIFICATE", "X", 2), of + "entry 0 has bad block type: X"},
		{"headers", "a", "", strings.Replace(anchor, "-----\n", "-----\nA: b\n\n", 1), of + "entry 0 has PEM block headers"},
		{"half", "a", "", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der[:9]})), of + "entry 0 does not parse as X.509: "},
		{"twice", "a", "", anchor + anchor, of + "entries 0 and 1 are the same certificate"},
	} {
		content, err := yaml.Marshal(map[string]any{
			"apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle", "metadata": map[string]any{"name": tt.bundle},
			"spec": map[string]any{"signerName": tt.signer, "trustBundle": tt.trust},
		})
		if err != nil {
			t.Fatal(err)
		}
		got := decoder{node: node}.decode(origin{pod.FileSource, "/m/a.yaml"}, content)
		text := ""
		if len(got.problems) > 0 {
			text = got.problems[0].Message
		}
		if !strings.HasPrefix(text, tt.want) || (text == "") != (tt.want == "") || (len(got.objects) == 1) != (tt.want == "") {
			t.Errorf("%s: %d objects, %q, want %q", tt.name, len(got.objects), text, tt.want)
		}
	}
}
