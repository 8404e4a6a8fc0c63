package certs_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"

	"berth/internal/cluster/certs"
	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/observe/metrics/metricstest"
)

const day = 24 * time.Hour

// signerAPI is the way to the signer of a test.
type signerAPI struct{ *kube.Client }

func (s signerAPI) FollowCertificateSigningRequest(ctx context.Context, name string, seen func(*certificatesv1.CertificateSigningRequest)) {
	var w *kube.Watch[*certificatesv1.CertificateSigningRequest]
	w = kube.NewWatch[*certificatesv1.CertificateSigningRequest](s.Client, kube.Named("", name), func() {
		if _, synced := w.List(); synced {
			r, _ := w.Get("", name)
			seen(r)
		}
	})
	_ = w.Run(ctx) // ends with ctx only
}

// office is an API server with a signer in it.
type office struct {
	*kubetest.Server
	api signerAPI
	ca  authority
}

func newOffice(t *testing.T) *office {
	t.Helper()
	server := kubetest.New()
	client, err := kube.Open(kube.Config{REST: server.Config(), Log: discard})
	if err != nil {
		t.Fatal(err)
	}
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * day), KeyUsage: x509.KeyUsageCertSign,
	}
	return &office{server, signerAPI{client}, authority{sign(t, template, template, key, key), key}}
}

// decide signs the requests that wait, for certificates of the given life, or denies them if it is
// zero.
func (o *office) decide(t *testing.T, life time.Duration) {
	t.Helper()
	for _, r := range kubetest.List[*certificatesv1.CertificateSigningRequest](o.Server) {
		if len(r.Status.Conditions) > 0 {
			continue
		}
		if life == 0 {
			r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied, Status: v1.ConditionTrue, Reason: "No", Message: "not you"}}
			kubetest.Put(o.Server, r)
			continue
		}
		block, _ := pem.Decode(r.Spec.Request)
		q, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: q.Subject, DNSNames: q.DNSNames, IPAddresses: q.IPAddresses,
			NotBefore: time.Now(), NotAfter: time.Now().Add(life),
		}
		der, err := x509.CreateCertificate(rand.Reader, template, o.ca.cert, q.PublicKey, o.ca.key)
		if err != nil {
			t.Fatal(err)
		}
		r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: v1.ConditionTrue}}
		r.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		kubetest.Put(o.Server, r)
	}
}

func (o *office) requests() (names []string) {
	for _, r := range kubetest.List[*certificatesv1.CertificateSigningRequest](o.Server) {
		names = append(names, r.Name)
	}
	return names
}

// node is the rotation of a node's client certificate, and starts it.
func (o *office) rotation(t *testing.T, dir string, more func(*certs.RotationConfig)) (r *certs.Rotation, stop func()) {
	t.Helper()
	cfg := certs.RotationConfig{
		Name: "client certificate", Store: certs.NewStore(dir, "kubelet-client"), SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Prefix: "node-csr-",
		Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		Wanted: func() *x509.CertificateRequest {
			return &x509.CertificateRequest{Subject: pkix.Name{CommonName: certs.NodeUser("box"), Organization: []string{certs.NodeGroup}}}
		},
		Signer: func() (certs.Signer, error) { return o.api, nil }, Log: discard,
	}
	if more != nil {
		more(&cfg)
	}
	r = certs.NewRotation(cfg)
	if err := r.Load(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.Run(ctx) // ends with ctx only
	}()
	return r, func() { cancel(); <-done }
}

func await(t *testing.T, r *certs.Rotation) *x509.Certificate {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if err := r.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	return r.Current().Leaf
}

func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, dir := newOffice(t), filepath.Join(t.TempDir(), "pki")
		changes, registry := 0, prometheus.NewRegistry()
		r, stop := o.rotation(t, dir, func(c *certs.RotationConfig) {
			c.Metrics = certs.ServingMetrics(registry)
			c.Changed = func() { changes++ }
			c.Random = mathrand.New(mathrand.NewPCG(1, 2)).Float64 // no request is under way at the end
		})
		defer stop()
		synctest.Wait()
		const ttl = "kubelet_certificate_manager_server_ttl_seconds"
		metricstest.Expect(t, registry, map[string]float64{ttl: math.Inf(1)})
		if _, ok := r.Left(); r.Current() != nil || ok {
			t.Fatal("a certificate that nobody signed")
		}
		got := kubetest.List[*certificatesv1.CertificateSigningRequest](o.Server)
		if len(got) != 1 || got[0].Spec.SignerName != "kubernetes.io/kube-apiserver-client-kubelet" || !strings.HasPrefix(got[0].Name, "node-csr-") {
			t.Fatalf("requests: %+v", got)
		}
		o.decide(t, day)
		first := await(t, r)
		if left, ok := r.Left(); !ok || left <= 0 || left > day {
			t.Errorf("it holds for %v, %v", left, ok)
		} else {
			metricstest.Expect(t, registry, map[string]float64{ttl: left.Seconds()})
		}
		if first.Subject.String() != "CN=system:node:box,O=system:nodes" {
			t.Errorf("subject %s", first.Subject)
		}
		for hour := range 10 * 24 {
			time.Sleep(time.Hour)
			synctest.Wait()
			if r.Current() == nil {
				t.Fatalf("no certificate after %d hours", hour+1)
			}
			if age := time.Since(r.Current().Leaf.NotBefore); age > 22*time.Hour {
				t.Fatalf("after %d hours the certificate is %v old", hour+1, age)
			}
			o.decide(t, day)
		}
		// Each lives for 70 to 90 % of a day.
		if changes < 11 || changes > 15 {
			t.Errorf("%d certificates in ten days", changes)
		}
		if n := len(o.requests()); n != changes {
			t.Errorf("%d requests for %d certificates", n, changes)
		}
		const rotations = "kubelet_certificate_manager_server_rotation_seconds"
		counted := metricstest.Values(t, registry)
		metricstest.Expect(t, registry, map[string]float64{rotations + "_count": float64(changes - 1)}) // the first replaces none
		if age := counted[rotations+"_sum"] / counted[rotations+"_count"]; age < 16*3600 || age > 22*3600 {
			t.Errorf("certificates were replaced when they were %v s old on average", age)
		}
		if counted["kubelet_server_expiration_renew_errors"] == 0 {
			t.Error("nobody signed in time, and that was not counted")
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 3 {
			t.Errorf("in the folder: %v, %v; want the last two pairs and the link", entries, err)
		}
		kept, err := certs.NewStore(dir, "kubelet-client").Read()
		if err != nil || !kept.Leaf.Equal(r.Current().Leaf) {
			t.Errorf("kept: %v, %v", kept, err)
		}
		st, err := os.Stat(filepath.Join(dir, "kubelet-client-current.pem"))
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v; want mode 0600", st, err)
		}
	})
}

func TestRotationGoesOnWithItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, dir := newOffice(t), t.TempDir()
		_, stop := o.rotation(t, dir, nil)
		synctest.Wait()
		stop()
		r, stop := o.rotation(t, dir, nil)
		defer stop()
		synctest.Wait()
		o.decide(t, day)
		await(t, r)
		if names := o.requests(); len(names) != 1 {
			t.Errorf("requests %v, want one", names)
		}
	})
}

func TestRotationRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		r, stop := o.rotation(t, t.TempDir(), nil)
		defer stop()
		synctest.Wait()
		o.decide(t, 0)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if names := o.requests(); len(names) != 2 {
			t.Fatalf("requests %v, want a second one", names)
		}
		// One that nobody decides about is asked for again after 15 minutes, and one that is
		// deleted at once.
		for _, name := range o.requests() {
			kubetest.Remove[*certificatesv1.CertificateSigningRequest](o.Server, "", name)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if names := o.requests(); len(names) != 1 {
			t.Fatalf("requests %v, want one", names)
		}
		time.Sleep(time.Hour)
		o.decide(t, day)
		await(t, r)
	})
}

func TestRotationOverOutages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		o.Stop()
		r, stop := o.rotation(t, t.TempDir(), nil)
		defer stop()
		time.Sleep(day)
		o.Start()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		o.Stop() // while it waits to be signed
		time.Sleep(2 * time.Minute)
		o.Start()
		o.decide(t, day)
		await(t, r)
		if names := o.requests(); len(names) != 1 {
			t.Errorf("requests %v, want one", names)
		}
		// It ends in an outage: there is none until the server is back.
		o.Stop()
		time.Sleep(2 * day)
		if r.Current() != nil {
			t.Error("a certificate that has ended is in force")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Wait(ctx); err == nil || err.Error() != "no client certificate that is valid: context deadline exceeded" {
			t.Errorf("Wait: %v", err)
		}
		o.Start()
		time.Sleep(time.Minute)
		synctest.Wait()
		o.decide(t, day)
		await(t, r)
	})
}

func TestRotationToTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		r, stop := o.rotation(t, t.TempDir(), func(c *certs.RotationConfig) { c.UntilEnd = true })
		defer stop()
		synctest.Wait()
		o.decide(t, day)
		await(t, r)
		time.Sleep(day - time.Second)
		synctest.Wait()
		if n := len(o.requests()); n != 1 || r.Current() == nil {
			t.Errorf("before the end: %d requests, certificate %v", n, r.Current())
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := len(o.requests()); n != 2 {
			t.Errorf("after the end: %d requests, want another", n)
		}
	})
}

func TestRotationHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		r, stop := o.rotation(t, t.TempDir(), nil)
		defer stop()
		expect := func(when, want string) {
			t.Helper()
			if err := r.Health(); (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%s: got %v, want %q", when, err, want)
			}
		}
		synctest.Wait()
		expect("before it is signed", "there is no client certificate yet")
		o.decide(t, day)
		await(t, r)
		o.Stop()
		time.Sleep(21 * time.Hour)
		synctest.Wait()
		expect("while it may be replaced in time", "")
		time.Sleep(time.Hour)
		expect("when that is late", "the client certificate ends on ")
		time.Sleep(2 * time.Hour)
		expect("when it is over", "the client certificate ended on ")
	})
}

func TestRotationOfOtherNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		var wanted *x509.CertificateRequest // read by the rotation, written while it sleeps
		r, stop := o.rotation(t, t.TempDir(), func(c *certs.RotationConfig) {
			c.Wanted, c.Covers = func() *x509.CertificateRequest { return wanted }, certs.CoversNames
		})
		defer stop()
		synctest.Wait()
		if n := len(o.requests()); n != 0 {
			t.Fatalf("%d requests before the addresses are known", n)
		}
		for i, address := range []string{"192.0.2.1", "192.0.2.2"} {
			wanted = &x509.CertificateRequest{
				Subject: pkix.Name{CommonName: "system:node:box", Organization: []string{"system:nodes"}}, DNSNames: []string{"box"}, IPAddresses: []net.IP{net.ParseIP(address)},
			}
			r.Wake()
			synctest.Wait()
			if n := len(o.requests()); n != i+1 {
				t.Fatalf("%d requests, want %d", n, i+1)
			}
			o.decide(t, day)
			synctest.Wait()
			if err := r.Current().Leaf.VerifyHostname(address); err != nil {
				t.Error(err)
			}
			r.Wake() // nothing has changed
			synctest.Wait()
			if n := len(o.requests()); n != i+1 {
				t.Errorf("%d requests, want %d", n, i+1)
			}
		}
	})
}
