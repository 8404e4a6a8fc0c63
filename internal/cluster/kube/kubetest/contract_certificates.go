package kubetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/cluster/kube"
)

var certificateContract = []clause{
	{"TrustBundlesAreOfASigner", func(c *contract) {
		signer := "example.com/" + c.id
		create(c, &certificatesv1beta1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Name: "example.com:" + c.id + ":a", Labels: map[string]string{"contract": c.id}},
			Spec:       certificatesv1beta1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: c.anchor()},
		})
		var found certificatesv1beta1.ClusterTrustBundleList
		err := list(c, kindOf[*certificatesv1beta1.ClusterTrustBundle](), metav1.ListOptions{FieldSelector: "spec.signerName=" + signer}, &found)
		if err != nil || len(found.Items) != 1 || found.Items[0].Spec.SignerName != signer {
			c.Errorf("%d bundles of the signer, %v", len(found.Items), err)
		}
		if err := (kube.PodObjects{Client: c.client()}).ProbeClusterTrustBundles(c.ctx()); err != nil {
			c.Errorf("the server has bundles, and says %v", err)
		}
	}},
	{"PodCertificateRequestsAreOfANode", func(c *contract) {
		r := create(c, &certificatesv1beta1.PodCertificateRequest{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "req-"},
			Spec: certificatesv1beta1.PodCertificateRequestSpec{
				SignerName: "example.com/" + c.id, PodName: "p", PodUID: "6a0b7a1e-0000-4000-8000-000000000001",
				ServiceAccountName: "default", ServiceAccountUID: "6a0b7a1e-0000-4000-8000-000000000002",
				NodeName: "node-of-contract", NodeUID: "6a0b7a1e-0000-4000-8000-000000000003", StubPKCS10Request: c.stub(),
			},
			Status: certificatesv1beta1.PodCertificateRequestStatus{CertificateChain: "mine"},
		})
		if r.Name == "" || r.Status.CertificateChain != "" || r.Spec.MaxExpirationSeconds == nil || *r.Spec.MaxExpirationSeconds != 86400 {
			c.Errorf("%+v, want a name, a day, and no certificate", r)
		}
		var found certificatesv1beta1.PodCertificateRequestList
		selected := metav1.ListOptions{FieldSelector: "spec.nodeName=node-of-contract,spec.signerName=example.com/" + c.id}
		if err := list(c, kindOf[*certificatesv1beta1.PodCertificateRequest](), selected, &found); err != nil || len(found.Items) != 1 {
			c.Errorf("%d requests of the node, %v", len(found.Items), err)
		}
		r.Status.Conditions = []metav1.Condition{{
			Type: certificatesv1beta1.PodCertificateRequestConditionTypeDenied, Status: metav1.ConditionTrue, Reason: "Test", Message: "no", LastTransitionTime: metav1.Now(),
		}}
		r = mustInto[*certificatesv1beta1.PodCertificateRequest](c, c.request("PUT", kindOf[*certificatesv1beta1.PodCertificateRequest]()).Name(r.Name).SubResource("status").Body(r))
		if len(r.Status.Conditions) != 1 || r.Status.Conditions[0].Reason != "Test" {
			c.Errorf("conditions = %v, want denied", r.Status.Conditions)
		}
	}},
}

// client returns the agent's client.
func (c *contract) client() *kube.Client {
	c.Helper()
	client, err := kube.Open(kube.Config{REST: c.Config, Version: "contract", ContentType: c.format, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		c.Fatal(err)
	}
	return client
}

func (c *contract) key() *ecdsa.PrivateKey {
	c.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.Fatal(err)
	}
	return key
}

// stub returns a PKCS #10 certificate request without a subject.
func (c *contract) stub() []byte {
	c.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, c.key())
	if err != nil {
		c.Fatal(err)
	}
	return der
}

// anchor returns a self-signed certificate as PEM.
func (c *contract) anchor() string {
	c.Helper()
	key := c.key()
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: c.id}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		c.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
