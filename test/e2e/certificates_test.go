//go:build e2e

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// authority signs certificates of pods.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  string
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t, key, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
}

// bundleManifest is a ClusterTrustBundle of the authorities.
func bundleManifest(t *testing.T, name, signer string, labels map[string]string, of ...*authority) string {
	t.Helper()
	b := certificatesv1beta1.ClusterTrustBundle{
		TypeMeta:   metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1beta1", Kind: "ClusterTrustBundle"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       certificatesv1beta1.ClusterTrustBundleSpec{SignerName: signer},
	}
	for _, a := range of {
		b.Spec.TrustBundle += a.pem
	}
	out, err := yaml.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return "---\n" + string(out)
}

// anchorNames returns the common names of the certificates in the text, sorted.
func anchorNames(text string) string {
	var names []string
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			names = append(names, c.Subject.CommonName)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

const trustPod = `---
apiVersion: v1
kind: Pod
metadata: {name: trusting}
spec:
  NODE
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  volumes:
  - {name: usr, hostPath: {path: /usr}}
  - {name: lib, hostPath: {path: /usr/lib}}
  - {name: lib64, hostPath: {path: /lib64}}
  - name: trust
    projected:
      sources:
      - clusterTrustBundle: {name: NAME, path: named.pem}
      - clusterTrustBundle: {signerName: SIGNER, labelSelector: {matchLabels: {tier: "1"}}, path: signed.pem}
      - clusterTrustBundle: {name: NAME-none, path: none.pem, optional: true}
  containers:
  - name: main
    image: berth.local/hello:1
    args: ["serve"]
    volumeMounts:
    - {name: usr, mountPath: /usr, readOnly: true}
    - {name: lib, mountPath: /lib, readOnly: true}
    - {name: lib64, mountPath: /lib64, readOnly: true}
    - {name: trust, mountPath: /trust}
`

// Pods are shown the bundles of the cluster, by name and by signer, and what becomes of them.
func TestClusterTrustBundles(t *testing.T) {
	c := newCluster(t)
	c.configure("featureGates: {ClusterTrustBundleProjection: true}\n")
	c.startMember()
	one, two := newAuthority(t, "one"), newAuthority(t, "two")
	plain, signer := "plain-"+c.name, c.name+".example.com/s"
	prefix := c.name + ".example.com:s:"
	t.Cleanup(func() {
		c.tidy("delete", "--ignore-not-found", "clustertrustbundle/"+plain, "clustertrustbundle/"+prefix+"a", "clustertrustbundle/"+prefix+"b")
	})
	tier := map[string]string{"tier": "1"}
	pod := strings.NewReplacer("NODE", "nodeSelector: {kubernetes.io/hostname: "+c.name+"}", "NAME", plain, "SIGNER", signer).Replace(trustPod)
	c.apply(bundleManifest(t, plain, "", nil, one) + pod)
	// It waits for what the signer is to bring.
	c.awaitEvent("trusting", "FailedMount", "combination of signerName and labelSelector matched zero ClusterTrustBundles")
	c.apply(bundleManifest(t, prefix+"a", signer, tier, two))
	p := c.awaitAPIReady("trusting").named("trusting")
	if got := anchorNames(c.exec("trusting", "/usr/bin/cat", "/trust/named.pem")); got != "one" {
		t.Errorf("by name: %q", got)
	}
	if got := anchorNames(c.exec("trusting", "/usr/bin/cat", "/trust/signed.pem")); got != "two" {
		t.Errorf("by signer: %q", got)
	}
	if got := c.exec("trusting", "/usr/bin/cat", "/trust/none.pem"); got != "" {
		t.Errorf("a bundle that is not there: %q", got)
	}
	c.apply(bundleManifest(t, plain, "", nil, one, two) + bundleManifest(t, prefix+"b", signer, tier, one, two))
	file := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(c.place.Root, "pods", string(p.UID), "volumes/kubernetes.io~projected/trust", name)) // it may be replaced just now
		return string(b)
	}
	until(t, "both files to have both authorities", func() bool {
		return anchorNames(file("named.pem")) == "one two" && anchorNames(file("signed.pem")) == "one two"
	})
}

// Bundles of manifests are shown as those of a cluster are.
func TestLocalTrustBundles(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	one, two := newAuthority(t, "one"), newAuthority(t, "two")
	tier := map[string]string{"tier": "1"}
	n.write("trust.yaml", bundleManifest(t, "plain", "", nil, one)+bundleManifest(t, "example.com:s:a", "example.com/s", tier, two))
	n.write("pod.yaml", strings.NewReplacer("NODE\n", "restartPolicy: Always\n", "NAME", "plain", "SIGNER", "example.com/s").Replace(trustPod))
	n.start()
	p := n.awaitReady("trusting").named("trusting")
	file := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(n.place.Root, "pods", string(p.UID), "volumes/kubernetes.io~projected/trust", name)) // it may be replaced just now
		return string(b)
	}
	if named, signed := anchorNames(file("named.pem")), anchorNames(file("signed.pem")); named != "one" || signed != "two" {
		t.Errorf("by name %q, by signer %q", named, signed)
	}
	n.write("trust.yaml", bundleManifest(t, "plain", "", nil, two)+bundleManifest(t, "example.com:s:a", "example.com/s", tier, two))
	until(t, "the file to follow the manifest", func() bool { return anchorNames(file("named.pem")) == "two" })
}

const certifiedPod = `apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  nodeSelector: {kubernetes.io/hostname: NODE}
  terminationGracePeriodSeconds: 0
  securityContext: {fsGroup: 2000}
  volumes:
  - name: id
    projected:
      sources:
      - podCertificate: {signerName: SIGNER, keyType: KEY, maxExpirationSeconds: 7200, credentialBundlePath: all.pem, keyPath: key.pem, certificateChainPath: chain.pem}
  containers:
  - name: main
    image: berth.local/hello:1
    args: ["serve"]
    volumeMounts: [{name: id, mountPath: /id}]
`

// sign answers the requests of the node for the signer until there were n, as f has it.
func (c *cluster) sign(signer string, n int, f func(*certificatesv1beta1.PodCertificateRequest)) {
	c.t.Helper()
	answered := map[string]bool{}
	c.awaitWithin(fmt.Sprintf("%d requests for certificates", n), func() bool {
		out, err := c.try("get", "podcertificaterequests", "--field-selector", "spec.signerName="+signer, "-o", "yaml")
		if err != nil {
			c.t.Fatal(err)
		}
		var found certificatesv1beta1.PodCertificateRequestList
		if err := yaml.Unmarshal([]byte(out), &found); err != nil {
			c.t.Fatal(err)
		}
		for i := range found.Items {
			r := &found.Items[i]
			if answered[r.Name] || len(r.Status.Conditions) > 0 {
				continue
			}
			f(r)
			r.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1beta1", Kind: "PodCertificateRequest"}
			text, err := yaml.Marshal(r)
			if err != nil {
				c.t.Fatal(err)
			}
			if a := c.kubectlIn(string(text), "replace", "--subresource=status", "-f", "-"); a.code != 0 {
				c.t.Fatalf("answer %s: %s", r.Name, a)
			}
			answered[r.Name] = true
		}
		return len(answered) >= n
	})
}

// issue gives the request a certificate of the authority.
func (a *authority) issue(r *certificatesv1beta1.PodCertificateRequest) {
	stub, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		a.t.Fatal(err)
	}
	begin := time.Now().Add(-time.Minute).Truncate(time.Second)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: r.Spec.PodName}, NotBefore: begin, NotAfter: begin.Add(2 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, stub.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	now := metav1.Now()
	r.Status = certificatesv1beta1.PodCertificateRequestStatus{
		Conditions:       []metav1.Condition{{Type: "Issued", Status: metav1.ConditionTrue, Reason: "Test", Message: "here", LastTransitionTime: now}},
		CertificateChain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})) + a.pem,
		NotBefore:        new(metav1.NewTime(template.NotBefore)), BeginRefreshAt: new(metav1.NewTime(template.NotBefore.Add(time.Hour))), NotAfter: new(metav1.NewTime(template.NotAfter)),
	}
}

// A pod gets a key and a certificate of its own from a signer of the cluster, and an agent that is
// started again another one; one that is refused is told of.
func TestPodCertificates(t *testing.T) {
	c := newCluster(t)
	c.configure("featureGates: {PodCertificateRequest: true}\n")
	a := c.startMember()
	ca, signer := newAuthority(t, "ca"), c.name+".example.com/s"
	manifest := func(name, keyType string) string {
		return strings.NewReplacer("NAME", name, "NODE", c.name, "SIGNER", signer, "KEY", keyType).Replace(certifiedPod)
	}
	c.apply(manifest("certified", "ECDSAP256"))
	c.sign(signer, 1, ca.issue)
	p := c.awaitAPIReady("certified").named("certified")
	volume := filepath.Join(c.place.Root, "pods", string(p.UID), "volumes/kubernetes.io~projected/id")
	pair := func(cert, key string) *x509.Certificate {
		t.Helper()
		loaded, err := tls.LoadX509KeyPair(filepath.Join(volume, cert), filepath.Join(volume, key))
		if err != nil {
			t.Fatal(err)
		}
		return loaded.Leaf
	}
	leaf := pair("all.pem", "all.pem")
	if other := pair("chain.pem", "key.pem"); !other.Equal(leaf) || leaf.Subject.CommonName != "certified" || leaf.CheckSignatureFrom(ca.cert) != nil {
		t.Errorf("certificates of %q and %q", leaf.Subject.CommonName, other.Subject.CommonName)
	}
	if got := anchorNames(readText(t, filepath.Join(volume, "chain.pem"))); got != "ca certified" {
		t.Errorf("the chain is of %q", got)
	}
	if st, err := os.Stat(filepath.Join(volume, "key.pem")); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("the key: %v, %v", st, err)
	}

	// Keys are not kept on a disk: the next agent asks for another, and the pod runs on with what
	// it has.
	a.kill()
	c.startKubelet()
	c.sign(signer, 1, ca.issue)
	until(t, "the new certificate", func() bool {
		now, err := tls.LoadX509KeyPair(filepath.Join(volume, "all.pem"), filepath.Join(volume, "all.pem"))
		return err == nil && !now.Leaf.Equal(leaf)
	})

	c.apply(manifest("refused", "ED25519"))
	c.sign(signer, 1, func(r *certificatesv1beta1.PodCertificateRequest) {
		r.Status.Conditions = []metav1.Condition{{
			Type: "Denied", Status: metav1.ConditionTrue, Reason: "UnsupportedKeyType", Message: "use ECDSAP256", LastTransitionTime: metav1.Now(),
		}}
	})
	c.awaitEvent("refused", "Denied", `reason="UnsupportedKeyType" message="use ECDSAP256"`)
	c.awaitEvent("refused", "FailedMount", "PodCertificateRequest was permanently denied")
}
