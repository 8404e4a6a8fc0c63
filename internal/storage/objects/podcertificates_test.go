package objects

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/record/events/messagestest"
)

// signing is an API server with requests for certificates of pods.
type signing struct {
	*server
	t         *testing.T
	requests  []*certificatesv1beta1.PodCertificateRequest
	made      int
	createErr error
	events    []string
	noNode    bool
}

func (s *signing) FollowPodCertificateRequests(ctx context.Context, seen func([]*certificatesv1beta1.PodCertificateRequest)) {
	s.follow(ctx, key{"", "requests"}, func() {
		s.mu.Lock()
		all := slices.Clone(s.requests)
		s.mu.Unlock()
		seen(all)
	})
}

func (s *signing) CreatePodCertificateRequest(_ context.Context, r *certificatesv1beta1.PodCertificateRequest) (*certificatesv1beta1.PodCertificateRequest, error) {
	s.mu.Lock()
	err := s.createErr
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	r = r.DeepCopy()
	r.CreationTimestamp = metav1.NewTime(time.Now().Add(s.ahead))
	s.change(func(string) {
		s.made++
		r.Name = fmt.Sprintf("%s%d", r.GenerateName, s.made)
		s.requests = append(s.requests, r)
	})
	return r, nil
}

// answer changes the status of the newest request.
func (s *signing) answer(f func(*certificatesv1beta1.PodCertificateRequestStatus)) {
	s.change(func(string) {
		r := s.requests[len(s.requests)-1].DeepCopy()
		f(&r.Status)
		s.requests[len(s.requests)-1] = r
	})
	synctest.Wait()
}

func (s *signing) issue(chain string, refresh, life time.Duration) {
	now := time.Now().Add(s.ahead)
	s.answer(func(st *certificatesv1beta1.PodCertificateRequestStatus) {
		st.Conditions = []metav1.Condition{{Type: "Issued", Status: metav1.ConditionTrue}}
		st.CertificateChain = chain
		st.NotBefore, st.BeginRefreshAt, st.NotAfter = ptr.To(metav1.NewTime(now)), ptr.To(metav1.NewTime(now.Add(refresh))), ptr.To(metav1.NewTime(now.Add(life)))
	})
}

// newest returns the newest request, and how many there were.
func (s *signing) newest() (*certificatesv1beta1.PodCertificateRequest, int) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) == 0 {
		return nil, s.made
	}
	return s.requests[len(s.requests)-1], s.made
}

// said returns the events that there were.
func (s *signing) said() []string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events
}

func startSigning(t *testing.T) (*signing, *Objects) {
	t.Helper()
	s := &signing{server: newServer(), t: t}
	s.account = &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "account", UID: "a1"}}
	o, err := New(Config{
		API: s, Classes: s, Accounts: s, SyncFrequency: time.Minute, Log: slog.New(slog.DiscardHandler),
		Certificates: PodCertificates{
			API: s,
			Node: func() (*v1.Node, bool) {
				return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "n1"}}, !s.noNode
			},
			Event: func(p *v1.Pod, eventtype, reason, message string) {
				s.mu.Lock()
				defer s.mu.Unlock()
				messagestest.SawEvent(reason, message)
				s.events = append(s.events, strings.Join([]string{p.Name, eventtype, reason, message}, " "))
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- o.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
		if left := s.watched(); len(left) != 0 {
			t.Errorf("still watched: %v", left)
		}
	})
	return s, o
}

func certified(uid string) *v1.Pod {
	p := podWith(uid, nil, nil)
	p.Spec.Volumes = []v1.Volume{{Name: "id", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
		{DownwardAPI: &v1.DownwardAPIProjection{}},
		{PodCertificate: &v1.PodCertificateProjection{
			SignerName: "example.com/s", KeyType: "ED25519", MaxExpirationSeconds: ptr.To(int32(7200)), UserAnnotations: map[string]string{"example.com/a": "b"},
		}},
	}}}}}
	return p
}

// shown returns what the pod's source shows: its chain, or the error.
func shown(o *Objects, p *v1.Pod) string {
	_, chain, err := o.PodCertificate(p, "id", 1)
	messagestest.SawError(err)
	if err != nil {
		return err.Error()
	}
	return string(chain)
}

const notIssued = "credential bundle is not issued yet"

// expectState checks in which state the one source of pods is.
func expectState(t *testing.T, o *Objects, want string) {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(o)
	got := metricstest.Values(t, r)
	if diff := cmp.Diff(map[string]float64{`kubelet_podcertificate_states{signer_name="example.com/s",state="` + want + `"}`: 1}, got); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
}

// A pair that is not renewed grows old.
func TestStateOfACertificate(t *testing.T) {
	begin := time.Unix(1700000000, 0)
	h := &credential{key: []byte("k"), beginRefresh: begin, notAfter: begin.Add(time.Hour)}
	for after, want := range map[time.Duration]string{
		0: "fresh", overdueAfter - 1: "fresh", overdueAfter: "overdue_for_refresh", time.Hour - 1: "overdue_for_refresh", time.Hour: "expired",
	} {
		if got := h.state(begin.Add(after)); got != want {
			t.Errorf("after %v: %s, want %s", after, got, want)
		}
	}
}

func TestACertificateIsAskedForAndRenewed(t *testing.T) {
	chains := anchorsOf(t, "leaf", "intermediate", "renewed")
	synctest.Test(t, func(t *testing.T) {
		s, o := startSigning(t)
		p := certified("1")
		if got := shown(o, p); got != "no credentials yet for key=ns/p-1/1/id/1" {
			t.Errorf("got %s", got)
		}
		o.Register(p)
		if got := shown(o, p); got != notIssued {
			t.Errorf("got %s", got)
		}
		expectState(t, o, "not_yet_issued")
		r, made := s.newest()
		if made != 1 {
			t.Fatalf("%d requests", made)
		}
		stub, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
		if err != nil || stub.CheckSignature() != nil || len(stub.Subject.Names) != 0 {
			t.Errorf("the stub: %v, %+v", err, stub)
		}
		want := certificatesv1beta1.PodCertificateRequestSpec{
			SignerName: "example.com/s", PodName: "p-1", PodUID: "1", ServiceAccountName: "account", ServiceAccountUID: "a1", NodeName: "node", NodeUID: "n1",
			MaxExpirationSeconds: ptr.To(int32(7200)), StubPKCS10Request: r.Spec.StubPKCS10Request, UnverifiedUserAnnotations: map[string]string{"example.com/a": "b"},
		}
		if d := cmp.Diff(want, r.Spec); d != "" {
			t.Errorf("the request (-want +got):\n%s", d)
		}
		if len(r.OwnerReferences) != 1 || r.OwnerReferences[0].UID != "1" || r.Namespace != "ns" {
			t.Errorf("the request's metadata: %+v", r.ObjectMeta)
		}

		s.issue("text\n"+strings.Replace(chains[0], "-----\n", "-----\nX: y\n\n", 1)+chains[1], time.Hour, 2*time.Hour)
		if got := told(o); !slices.Equal(got, []string{"1"}) {
			t.Errorf("told: %v", got)
		}
		if got := shown(o, p); got != chains[0]+chains[1] {
			t.Errorf("got %s", got)
		}
		key, _, _ := o.PodCertificate(p, "id", 1)
		block, _ := pem.Decode(key)
		private, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil || !private.(crypto.Signer).Public().(interface{ Equal(crypto.PublicKey) bool }).Equal(stub.PublicKey) {
			t.Errorf("the key is not that of the request: %v", err)
		}

		expectState(t, o, "fresh")
		time.Sleep(time.Hour - time.Second)
		if _, made := s.newest(); made != 1 {
			t.Errorf("%d requests before it was time", made)
		}
		time.Sleep(5*time.Minute + time.Second)
		renewal, made := s.newest()
		if made != 2 || slices.Equal(renewal.Spec.StubPKCS10Request, r.Spec.StubPKCS10Request) {
			t.Errorf("%d requests, with the same key: %v", made, slices.Equal(renewal.Spec.StubPKCS10Request, r.Spec.StubPKCS10Request))
		}
		if got := shown(o, p); got != chains[0]+chains[1] {
			t.Errorf("while it is renewed: %s", got)
		}
		s.issue(chains[2], time.Hour, 2*time.Hour)
		if got := shown(o, p); got != chains[2] || !slices.Equal(told(o), []string{"1"}) {
			t.Errorf("renewed: %s", got)
		}
		o.Unregister("1")
		time.Sleep(24 * time.Hour)
		if _, made := s.newest(); made != 2 || len(s.watched()) != 0 || len(o.credentials.held) != 0 {
			t.Errorf("after the pod: %d requests, %v watched", made, s.watched())
		}
		if len(s.said()) != 0 {
			t.Errorf("events: %q", s.events)
		}
	})
}

// This node's clock may be wrong by years: a certificate is replaced after as much of its life as
// by the signer's clock.
func TestACertificateBesideAWrongClock(t *testing.T) {
	chains := anchorsOf(t, "leaf")
	for name, ahead := range map[string]time.Duration{"ours is behind": years, "ours is ahead": -years} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, o := startSigning(t)
				s.ahead = ahead
				o.Register(certified("1"))
				s.newest()
				time.Sleep(time.Minute)
				s.issue(chains[0], time.Hour, 2*time.Hour)
				time.Sleep(time.Hour - time.Second)
				if _, made := s.newest(); made != 1 {
					t.Errorf("%d requests before it was time", made)
				}
				time.Sleep(maxRefreshJitter + time.Second)
				if _, made := s.newest(); made != 2 {
					t.Errorf("%d requests when it was time", made)
				}
				if said := s.said(); len(said) != 0 {
					t.Errorf("events: %q", said)
				}
			})
		})
	}
}

func TestACertificateThatIsRefused(t *testing.T) {
	for how, word := range map[string]string{"Denied": "denied", "Failed": "failed"} {
		synctest.Test(t, func(t *testing.T) {
			s, o := startSigning(t)
			p := certified("1")
			o.Register(p)
			s.newest()
			s.answer(func(st *certificatesv1beta1.PodCertificateRequestStatus) {
				st.Conditions = []metav1.Condition{{Type: how, Status: metav1.ConditionTrue, Reason: "UnsupportedKeyType", Message: "use RSA"}}
			})
			want := `PodCertificateRequest was permanently ` + word + `: reason="UnsupportedKeyType" message="use RSA"`
			if got := shown(o, p); got != want {
				t.Errorf("got %s", got)
			}
			expectState(t, o, word)
			if !slices.Equal(told(o), []string{"1"}) || !slices.Equal(s.said(), []string{`p-1 Warning ` + how + ` PodCertificateRequest req-1: reason="UnsupportedKeyType" message="use RSA"`}) {
				t.Errorf("events: %q", s.events)
			}
			time.Sleep(24 * time.Hour)
			if _, made := s.newest(); made != 1 || shown(o, p) != want {
				t.Errorf("it was asked %d times", made)
			}
		})
	}
}

// A request that goes, or that the server does not take, is made again.
func TestRequestsThatGo(t *testing.T) {
	chains := anchorsOf(t, "leaf")
	synctest.Test(t, func(t *testing.T) {
		s, o := startSigning(t)
		s.createErr = errors.New("away")
		p := certified("1")
		o.Register(p)
		time.Sleep(10 * time.Second)
		if _, made := s.newest(); made != 0 || shown(o, p) != notIssued {
			t.Errorf("%d requests", made)
		}
		s.change(func(string) { s.createErr = nil })
		time.Sleep(requestRetry.Cap)
		if _, made := s.newest(); made != 1 {
			t.Errorf("%d requests", made)
		}
		s.change(func(string) { s.requests = nil })
		time.Sleep(lostAfter - requestRetry.Cap - time.Second)
		if _, made := s.newest(); made != 1 {
			t.Errorf("%d requests too early", made)
		}
		time.Sleep(maxRefreshJitter + requestRetry.Cap + time.Minute)
		if _, made := s.newest(); made != 2 {
			t.Errorf("%d requests", made)
		}
		// A signer may take its time.
		time.Sleep(24 * time.Hour)
		if _, made := s.newest(); made != 2 || shown(o, p) != notIssued {
			t.Errorf("%d requests", made)
		}
		s.issue(chains[0], time.Hour, 2*time.Hour)
		// Nobody renews it: its user is told, and the old pair serves.
		time.Sleep(3 * time.Hour)
		want := []string{
			"p-1 Warning CertificateOverdueForRefresh PodCertificate refresh overdue: signer example.com/s",
			"p-1 Warning CertificateExpired PodCertificate expired: signer example.com/s",
		}
		if d := cmp.Diff(want, s.said()); d != "" || shown(o, p) != chains[0] {
			t.Errorf("events (-want +got):\n%s", d)
		}
	})
}

// Without a Node there is nothing to ask for; the feature may be off.
func TestNoCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, o := startSigning(t)
		s.noNode = true
		p := certified("1")
		o.Register(p)
		time.Sleep(time.Minute)
		if _, made := s.newest(); made != 0 {
			t.Errorf("%d requests", made)
		}
		off := start(t, newServer())
		off.Register(p)
		if got := shown(off, p); !strings.Contains(got, "feature gate PodCertificateRequest") {
			t.Errorf("got %s", got)
		}
	})
}

func TestKeys(t *testing.T) {
	for keyType, want := range map[string]string{
		"RSA3072": "RSA", "RSA4096": "RSA", "ECDSAP256": "ECDSA", "ECDSAP384": "ECDSA", "ECDSAP521": "ECDSA", "ED25519": "Ed25519",
	} {
		key, err := generateKey(keyType)
		if err != nil {
			t.Fatal(err)
		}
		stub, err := x509.CreateCertificateRequest(nil, &x509.CertificateRequest{}, key)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := x509.ParseCertificateRequest(stub); err != nil || r.PublicKeyAlgorithm.String() != want || r.CheckSignature() != nil {
			t.Errorf("%s: %v, %v", keyType, r.PublicKeyAlgorithm, err)
		}
	}
	if _, err := generateKey("DSA"); err == nil {
		t.Error("a key of an unknown type")
	}
}
