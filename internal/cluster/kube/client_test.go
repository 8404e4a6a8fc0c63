package kube_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
)

func TestWireFormat(t *testing.T) {
	for name, test := range map[string]struct {
		options []kubetest.Option
		config  string
		want    string
	}{
		"protobuf by default":        {nil, "", "application/vnd.kubernetes.protobuf"},
		"JSON where it is asked for": {[]kubetest.Option{kubetest.WithoutProtobuf()}, "application/json", "application/json"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := kubetest.New(test.options...)
				c := open(t, kube.Config{REST: s.Config(), ContentType: test.config})
				if _, err := c.CreateNode(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}); err != nil {
					t.Fatal(err)
				}
				q := s.Requests()[0]
				if q.ContentType != test.want {
					t.Errorf("content type = %q, want %q", q.ContentType, test.want)
				}
				if q.UserAgent != "berth/v0.0.0-test" {
					t.Errorf("user agent = %q", q.UserAgent)
				}
			})
		})
	}
}

func TestErrorsNameTheCallAndKeepTheReason(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		kubetest.Put(s, newPod("web", "here"))
		_, getErr := c.GetPod(t.Context(), "default", "none")
		_, nodeErr := c.GetNode(t.Context(), "none")
		_, tokenErr := (kube.PodObjects{Client: c}).CreateToken(t.Context(), "default", "none", &authenticationv1.TokenRequest{})
		s.Inject(kubetest.Fault{Resource: "subjectaccessreviews", Then: kubetest.Answer(http.StatusForbidden, metav1.StatusReasonForbidden, "no")})
		_, reviewErr := c.CreateSubjectAccessReview(t.Context(), &authorizationv1.SubjectAccessReview{})
		for _, test := range []struct {
			err  error
			is   func(error) bool
			want string
		}{
			{getErr, apierrors.IsNotFound, "get pod default/none: "},
			{nodeErr, apierrors.IsNotFound, "get node none: "},
			{tokenErr, apierrors.IsNotFound, "create token of service account default/none: "},
			{reviewErr, apierrors.IsForbidden, "create subject access review: "},
			{c.CreatePod(t.Context(), newPod("web", "here")), apierrors.IsAlreadyExists, "create pod default/web: "},
			{c.DeletePod(t.Context(), "default", "web", "another"), kubetest.IsOtherUID, "delete pod default/web: "},
			{c.PatchPodStatus(t.Context(), "default", "web", []byte(`{"metadata":{"uid":"another"}}`)), kubetest.IsOtherUID, "patch status of pod default/web: "},
		} {
			if test.err == nil || !test.is(test.err) || !strings.HasPrefix(test.err.Error(), test.want) {
				t.Errorf("error %v, want one that begins with %q and has its reason", test.err, test.want)
			}
		}
		s.Stop()
		if _, err := c.GetPod(t.Context(), "default", "web"); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("error = %v, want connection refused", err)
		}
	})
}

func TestPodCalls(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		if err := c.CreatePod(t.Context(), newPod("web", "here")); err != nil {
			t.Fatal(err)
		}
		p, err := c.GetPod(t.Context(), "default", "web")
		if err != nil {
			t.Fatal(err)
		}
		patch := fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"phase":"Running"}}`, p.UID)
		if err := c.PatchPodStatus(t.Context(), "default", "web", []byte(patch)); err != nil {
			t.Fatal(err)
		}
		if p, _ := kubetest.Get[*v1.Pod](s, "default", "web"); p.Status.Phase != v1.PodRunning {
			t.Errorf("phase = %q, want Running", p.Status.Phase)
		}
		if err := c.DeletePod(t.Context(), "default", "web", p.UID); err != nil {
			t.Fatal(err)
		}
		if _, ok := kubetest.Get[*v1.Pod](s, "default", "web"); ok {
			t.Error("the pod is still there")
		}
	})
}

func TestNodeCalls(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		addresses := func(ips ...string) (out []v1.NodeAddress) {
			for _, ip := range ips {
				out = append(out, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
			}
			return append(out, v1.NodeAddress{Type: v1.NodeHostName, Address: "n"})
		}
		node, err := c.CreateNode(t.Context(), &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"keep": "", "drop": ""}},
			Status:     v1.NodeStatus{Addresses: addresses("10.0.0.1")},
		})
		if err != nil {
			t.Fatal(err)
		}
		foreign := node.DeepCopy() // somebody else writes too
		foreign.Status.Conditions = []v1.NodeCondition{{Type: "Theirs", Status: v1.ConditionTrue}}
		kubetest.Put(s, foreign)

		changed := node.DeepCopy()
		changed.Labels = map[string]string{"keep": "", "new": ""}
		changed.Status.Addresses = addresses("10.0.0.1", "fd00::1")
		changed.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
		if _, err := c.PatchNode(t.Context(), node, changed); err != nil {
			t.Fatal(err)
		}
		got, err := c.PatchNodeStatus(t.Context(), node, changed)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Status.Addresses) != 3 || len(got.Status.Conditions) != 2 {
			t.Errorf("status = %+v, want 3 addresses, and the condition of somebody else beside ours", got.Status)
		}
		if _, dropped := got.Labels["drop"]; dropped || len(got.Labels) != 2 {
			t.Errorf("labels = %v", got.Labels)
		}
		s.ForgetRequests()
		if same, err := c.PatchNodeStatus(t.Context(), got, got.DeepCopy()); err != nil || same != got || len(s.Requests()) > 0 {
			t.Errorf("a patch without a difference: %v, %d requests", err, len(s.Requests()))
		}
		kubetest.Remove[*v1.Node](s, "", "n")
		kubetest.Put(s, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		if _, err := c.PatchNode(t.Context(), node, changed); !kubetest.IsOtherUID(err) {
			t.Errorf("patch of a node that was made anew: %v, want it to be refused for its UID", err)
		}
	})
}

func TestOtherCalls(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		ctx := t.Context()
		lease, err := c.CreateLease(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: "n"}})
		if err != nil {
			t.Fatal(err)
		}
		renewed := lease.DeepCopy()
		renewed.Spec.HolderIdentity = new("n")
		if _, err := c.UpdateLease(ctx, renewed); err != nil {
			t.Fatal(err)
		}
		if _, err := c.UpdateLease(ctx, lease); err != nil && !apierrors.IsConflict(err) {
			t.Errorf("update of an old lease: %v, want a conflict", err)
		}
		if got, err := c.GetLease(ctx, "kube-node-lease", "n"); err != nil || *got.Spec.HolderIdentity != "n" {
			t.Errorf("lease = %v, %v", got, err)
		}

		event, err := c.CreateEvent(ctx, &v1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e"}, Count: 1})
		if err != nil {
			t.Fatal(err)
		}
		again := event.DeepCopy()
		again.Count = 2
		if got, err := c.PatchEvent(ctx, event, again); err != nil || got.Count != 2 {
			t.Errorf("event = %v, %v", got, err)
		}

		kubetest.Put(s, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}})
		token, err := (kube.PodObjects{Client: c}).CreateToken(ctx, "default", "default", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(7200))}})
		if err != nil || token.Status.Token == "" || !token.Status.ExpirationTimestamp.Time.Equal(time.Now().Add(2*time.Hour)) {
			t.Errorf("token = %v, %v", token, err)
		}

		s.AnswerTokenReviews(func(r *authenticationv1.TokenReview) {
			r.Status.Authenticated, r.Status.User.Username = r.Spec.Token == "good", "me"
		})
		review, err := c.CreateTokenReview(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "good"}})
		if err != nil || !review.Status.Authenticated || review.Status.User.Username != "me" {
			t.Errorf("token review = %v, %v", review, err)
		}

		kubetest.Put(s, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m"}, Data: map[string]string{"k": "v"}})
		kubetest.Put(s, &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}, StringData: map[string]string{"k": "v"}})
		if m, err := kube.Get[*v1.ConfigMap](ctx, c, "default", "m", metav1.GetOptions{}); err != nil || m.Data["k"] != "v" {
			t.Errorf("config map = %v, %v", m, err)
		}
		if sec, err := kube.Get[*v1.Secret](ctx, c, "default", "s", metav1.GetOptions{}); err != nil || string(sec.Data["k"]) != "v" {
			t.Errorf("secret = %v, %v", sec, err)
		}

		csr, err := c.CreateCertificateSigningRequest(ctx, &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"}})
		if err != nil {
			t.Fatal(err)
		}
		w := start[*certificatesv1.CertificateSigningRequest](t, c, kube.Named("", csr.Name))
		csr.Status.Certificate = []byte("signed")
		kubetest.Put(s, csr)
		synctest.Wait()
		if got, _ := w.Get("", csr.Name); got == nil || string(got.Status.Certificate) != "signed" {
			t.Errorf("certificate signing request = %v, want it signed", got)
		}
	})
}

func TestLimits(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, _ *kube.Client) {
		c := open(t, kube.Config{REST: s.Config(), Limits: kube.Limits{QPS: 5, Burst: 10}})
		heartbeat, err := c.With(kube.Limits{Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		get := func(c *kube.Client) error { _, err := c.GetNode(t.Context(), "n"); return err }
		began := time.Now()
		for range 20 {
			get(c)
		}
		if took := time.Since(began); took < 2*time.Second-time.Millisecond || took > 2*time.Second+time.Millisecond {
			t.Errorf("20 calls at 5 per second and 10 ahead took %v, want 2 s", took)
		}
		began = time.Now()
		for range 100 {
			get(heartbeat)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("calls without a limit waited %v", took)
		}
		s.Inject(kubetest.Fault{Then: kubetest.Hang()})
		began = time.Now()
		err = get(heartbeat)
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != 10*time.Second {
			t.Errorf("a call that hangs ended after %v with %v, want a deadline after 10 s", took, err)
		}
		began = time.Now()
		err = get(c)
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > time.Minute {
			t.Errorf("a call that hangs ended after %v with %v, want a deadline after 60 s", took, err)
		}
	})
}

// A write whose answer is lost must not be sent again by itself: who made it decides.
func TestWritesAreNotRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		s.Inject(kubetest.Fault{Verb: "create", Resource: "nodes", Times: 1, Then: kubetest.LoseAnswer()})
		if _, err := c.CreateNode(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}); err == nil {
			t.Error("the answer was lost and there is no error")
		}
		if n := s.Count("create", "nodes"); n != 1 {
			t.Errorf("%d requests, want 1", n)
		}
		if _, ok := kubetest.Get[*v1.Node](s, "", "n"); !ok {
			t.Error("the node was not created")
		}
	})
}

// A server that answers with an error is reached. A call that nobody waits for any more says
// nothing.
func TestHealth(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		heartbeat, err := c.With(kube.Limits{Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		expect := func(step string, reached bool) {
			t.Helper()
			_, err := heartbeat.GetNode(t.Context(), "n")
			if err == nil {
				t.Errorf("%s: there is a node", step)
			}
			if health := c.Health(); (health == nil) != reached || !reached && !strings.Contains(health.Error(), "the API server cannot be reached: ") {
				t.Errorf("%s: health %v, want reached %v", step, health, reached)
			}
		}
		expect("not found", true)
		s.Stop()
		expect("gone", false)
		s.Start()
		expect("back", true)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.GetNode(ctx, "n"); err == nil || c.Health() != nil {
			t.Errorf("a call that was given up: %v, health %v", err, c.Health())
		}
	})
}

func TestTokenFileIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "token")
		write(t, file, []byte("first"))
		s := kubetest.New()
		config := s.Config()
		config.BearerTokenFile = file
		c := open(t, kube.Config{REST: config})
		last := func() string {
			_, _ = c.GetNode(t.Context(), "n") // only who asked counts
			q := s.Requests()
			return q[len(q)-1].Authorization
		}
		if got := last(); got != "Bearer first" {
			t.Fatalf("Authorization = %q", got)
		}
		write(t, file, []byte("second"))
		advance(time.Minute)
		if got := last(); got != "Bearer second" {
			t.Errorf("Authorization = %q a minute after the change of the file", got)
		}
	})
}

func TestClientCertificateIsReadAgain(t *testing.T) {
	var subject atomic.Value
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		subject.Store(r.TLS.PeerCertificates[0].Subject.CommonName)
		kubetest.New().ServeHTTP(w, r)
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo) // of connections that are closed in the middle of a handshake
	server.StartTLS()
	defer server.Close()

	dir := t.TempDir()
	certificate, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, certificate, key, "first")
	write(t, filepath.Join(dir, "ca.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	kubeconfig := filepath.Join(dir, "kubeconfig")
	write(t, kubeconfig, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: %q, certificate-authority: ca.pem}}]
users: [{name: u, user: {client-certificate: cert.pem, client-key: key.pem}}]
`, server.URL))
	config, err := kube.LoadKubeconfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	c := open(t, kube.Config{REST: config})
	seen := func() any {
		if _, err := c.GetNode(t.Context(), "n"); !apierrors.IsNotFound(err) {
			t.Fatalf("get node: %v, want not found", err)
		}
		return subject.Load()
	}
	if got := seen(); got != "first" {
		t.Fatalf("the server saw %v", got)
	}
	writeCertificate(t, certificate, key, "second")
	// What was read stays in use for a moment, whatever happens to the file.
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for c.CloseConnections(); seen() != "second"; c.CloseConnections() {
		select {
		case <-tick.C:
		case <-t.Context().Done(): // the time-out of the test
			t.Fatal("the server does not see the changed files")
		}
	}
}

func TestKubeconfigErrorsNameTheFile(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"broken":     "{",
		"no-context": "apiVersion: v1\nkind: Config\ncurrent-context: c\n",
		"no-cluster": "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: k}}]\n",
		"empty":      "",
	} {
		file := filepath.Join(dir, name)
		write(t, file, []byte(text))
		if _, err := kube.LoadKubeconfig(file); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: error = %v, want one that names %s", name, err, file)
		}
	}
	if _, err := kube.LoadKubeconfig(filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// A kubeconfig that a node writes for itself has all that another file says of the cluster, with
// paths that hold in every folder. A kubeconfig that cannot be written leaves the one of before as
// it is.
func TestDiskThatTakesNoKubeconfig(t *testing.T) {
	checkpointtest.Each(t, func(t *testing.T, fail func(string) func()) {
		path := filepath.Join(t.TempDir(), "kubelet.conf")
		if err := kube.WriteKubeconfig(path, &api.Cluster{Server: "https://192.0.2.9:6443"}, "/pki/current.pem"); err != nil {
			t.Fatal(err)
		}
		defer fail(filepath.Dir(path))()
		err := kube.WriteKubeconfig(path, &api.Cluster{Server: "https://192.0.2.8:6443"}, "/pki/current.pem")
		if err == nil || !strings.Contains(err.Error(), "kubeconfig: write "+path+": ") {
			t.Errorf("error %v", err)
		}
		if own, err := kube.LoadCluster(path); err != nil || own.Server != "https://192.0.2.9:6443" {
			t.Errorf("kubeconfig %v, %v", own, err)
		}
	})
}

func TestWriteKubeconfigKeepsTheCluster(t *testing.T) {
	for _, c := range []struct{ name, cluster, want string }{
		{
			"authority in a file, behind a proxy",
			`{server: "https://192.0.2.9:6443/path", certificate-authority: ca.pem, proxy-url: "http://192.0.2.1:3128", tls-server-name: kube, disable-compression: true, extensions: [{name: e, extension: {kind: K, of: a vendor}}]}`,
			"certificate-authority: DIR/ca.pem\ndisable-compression: true\nextensions:\n- extension:\n    kind: K\n    of: a vendor\n  name: e\nproxy-url: http://192.0.2.1:3128\nserver: https://192.0.2.9:6443/path\ntls-server-name: kube\n",
		},
		{
			"authority in the file itself", `{server: "https://192.0.2.9:6443", certificate-authority-data: bm90IGxvb2tlZCBhdA==}`,
			"certificate-authority-data: bm90IGxvb2tlZCBhdA==\nserver: https://192.0.2.9:6443\n",
		},
		{"any authority", `{server: "https://192.0.2.9:6443", insecure-skip-tls-verify: true}`, "insecure-skip-tls-verify: true\nserver: https://192.0.2.9:6443\n"},
	} {
		dir := t.TempDir()
		given, own := filepath.Join(dir, "bootstrap.conf"), filepath.Join(t.TempDir(), "kubelet.conf")
		write(t, given, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: other, cluster: {server: "https://192.0.2.8"}}, {name: k, cluster: %s}]
users: [{name: u, user: {token: boot}}]
`, c.cluster))
		cluster, err := kube.LoadCluster(given)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if err := kube.WriteKubeconfig(own, cluster, "/pki/current.pem"); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		text, err := os.ReadFile(own)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var written struct {
			Clusters []struct{ Cluster map[string]any }
		}
		if err := yaml.Unmarshal(text, &written); err != nil || len(written.Clusters) != 1 {
			t.Fatalf("%s: %v\n%s", c.name, err, text)
		}
		got, err := yaml.Marshal(written.Clusters[0].Cluster)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(strings.ReplaceAll(c.want, "DIR", dir), string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func write(t *testing.T, file string, text []byte) {
	t.Helper()
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func writeCertificate(t *testing.T, certificateFile, keyFile, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, certificateFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	write(t, keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}))
}
