package validation

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		errs := ValidateObject(&certificatesv1beta1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Name: tt.bundle},
			Spec:       certificatesv1beta1.ClusterTrustBundleSpec{SignerName: tt.signer, TrustBundle: tt.trust},
		})
		text := ""
		if len(errs) > 0 {
			text = errs[0].Error()
		}
		if !strings.HasPrefix(text, tt.want) || (text == "") != (tt.want == "") {
			t.Errorf("%s: %q, want %q", tt.name, text, tt.want)
		}
	}
}
