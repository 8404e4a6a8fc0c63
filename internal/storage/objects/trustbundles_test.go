package objects

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/record/events/messagestest"
)

// anchorsOf returns certificates of the names, as PEM.
func anchorsOf(t *testing.T, names ...string) []string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for i, name := range names {
		c := &x509.Certificate{SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{CommonName: name}}
		der, err := x509.CreateCertificate(rand.Reader, c, c, public, private)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	}
	return out
}

// namesIn returns the common names of certificates, sorted; everything else in the text is an
// error.
func namesIn(t *testing.T, text []byte) string {
	t.Helper()
	var out []string
	for rest := text; len(rest) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			t.Fatalf("no PEM: %q", rest)
		}
		if len(block.Headers) != 0 || block.Type != "CERTIFICATE" {
			t.Errorf("a %s with the headers %v", block.Type, block.Headers)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, c.Subject.CommonName)
	}
	if text := string(text); strings.Count(text, "-----") != 4*len(out) {
		t.Errorf("something stands beside the certificates: %s", text)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func bundle(name, signer, labels, trust string) *certificatesv1beta1.ClusterTrustBundle {
	b := &certificatesv1beta1.ClusterTrustBundle{Spec: certificatesv1beta1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: trust}}
	b.Name = name
	if labels != "" {
		k, v, _ := strings.Cut(labels, "=")
		b.Labels = map[string]string{k: v}
	}
	return b
}

func TestSelectAnchors(t *testing.T) {
	a := anchorsOf(t, "a", "b", "c")
	withHeaders := strings.Replace(a[0], "-----\n", "-----\nOf: somebody\n\n", 1)
	all := []*certificatesv1beta1.ClusterTrustBundle{
		bundle("plain", "", "", "a comment\n"+a[0]+"between\n"+a[1]+"-----BEGIN OTHER-----\nAAAA\n-----END OTHER-----\n"),
		bundle("example.com:s:1", "example.com/s", "tier=1", withHeaders+a[2]),
		bundle("example.com:s:2", "example.com/s", "tier=2", a[0]+a[1]),
		bundle("example.com:t:1", "example.com/t", "", a[1]),
	}
	of := func(signer string, selector *metav1.LabelSelector) v1.ClusterTrustBundleProjection {
		return v1.ClusterTrustBundleProjection{SignerName: &signer, LabelSelector: selector}
	}
	tier := func(n string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"tier": n}}
	}
	optional := func(src v1.ClusterTrustBundleProjection) v1.ClusterTrustBundleProjection {
		src.Optional = ptr.To(true)
		return src
	}
	const none = "combination of signerName and labelSelector matched zero ClusterTrustBundles"
	for name, tc := range map[string]struct {
		src       v1.ClusterTrustBundleProjection
		want, err string
	}{
		"by name":                       {src: v1.ClusterTrustBundleProjection{Name: ptr.To("plain")}, want: "a b"},
		"by a name of a signer":         {src: v1.ClusterTrustBundleProjection{Name: ptr.To("example.com:s:1")}, want: "a c"},
		"by a name that is not there":   {src: v1.ClusterTrustBundleProjection{Name: ptr.To("no")}, err: `clustertrustbundle.certificates.k8s.io "no" not found`},
		"which may be missing":          {src: optional(v1.ClusterTrustBundleProjection{Name: ptr.To("no")})},
		"all of a signer":               {src: of("example.com/s", &metav1.LabelSelector{}), want: "a b c"},
		"some of a signer":              {src: of("example.com/s", tier("2")), want: "a b"},
		"none of a signer":              {src: of("example.com/s", tier("3")), err: none},
		"without a selector":            {src: of("example.com/s", nil), err: none},
		"which may be none":             {src: optional(of("example.com/s", nil))},
		"another signer":                {src: of("example.com/t", &metav1.LabelSelector{}), want: "b"},
		"a selector that says too much": {src: of("example.com/t", tier(strings.Repeat("x", 101<<10))), err: "the labelSelector is longer than 102400 bytes"},
		"a selector that is none": {
			src: of("example.com/t", &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: "Is"}}}),
			err: `labelSelector: "Is" is not a valid label selector operator`,
		},
		"nothing": {err: "a clusterTrustBundle source needs a name or a signerName"},
	} {
		got, err := selectAnchors(all, &tc.src)
		messagestest.SawError(err)
		if text := ""; err != nil {
			if text = err.Error(); text != tc.err {
				t.Errorf("%s: %v, want %s", name, err, tc.err)
			}
		} else if tc.err != "" || namesIn(t, got) != tc.want {
			t.Errorf("%s: %q, want %q %s", name, namesIn(t, got), tc.want, tc.err)
		}
	}
	one, err := selectAnchors(all, ptr.To(of("example.com/s", &metav1.LabelSelector{})))
	slices.Reverse(all)
	if other, e := selectAnchors(all, ptr.To(of("example.com/s", &metav1.LabelSelector{}))); err != nil || e != nil || string(one) != string(other) {
		t.Errorf("the same bundles in another order are another file: %v, %v", err, e)
	}
}

// trust is an API server with bundles.
type trust struct {
	*server
	bundles []*certificatesv1beta1.ClusterTrustBundle
	absent  bool
}

func (s *trust) ProbeClusterTrustBundles(context.Context) error {
	if s.absent {
		return apierrors.NewNotFound(certificatesv1beta1.Resource("clustertrustbundles"), "")
	}
	return nil
}

func (s *trust) FollowClusterTrustBundles(ctx context.Context, seen func([]*certificatesv1beta1.ClusterTrustBundle)) {
	s.follow(ctx, key{"", "bundles"}, func() {
		s.mu.Lock()
		all := slices.Clone(s.bundles)
		s.mu.Unlock()
		seen(all)
	})
}

func (s *trust) set(bundles ...*certificatesv1beta1.ClusterTrustBundle) {
	s.change(func(version string) {
		for _, b := range bundles {
			b.ResourceVersion = version
		}
		s.bundles = bundles
	})
}

func startTrust(t *testing.T) (*trust, *Objects) {
	t.Helper()
	s := &trust{server: newServer()}
	o, err := New(Config{API: s, Classes: s, Accounts: s, Trust: s, SyncFrequency: time.Minute, Log: slog.New(slog.DiscardHandler)})
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
	})
	return s, o
}

func trusting(uid, name string) (*v1.Pod, *v1.ClusterTrustBundleProjection) {
	p := podWith(uid, nil, nil)
	src := &v1.ClusterTrustBundleProjection{Name: &name, Path: "anchors"}
	p.Spec.Volumes = []v1.Volume{{Name: "trust", VolumeSource: v1.VolumeSource{
		Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{ClusterTrustBundle: src}}},
	}}}
	return p, src
}

func TestBundlesAreFollowedWhileAPodShowsSome(t *testing.T) {
	a := anchorsOf(t, "a", "b")
	synctest.Test(t, func(t *testing.T) {
		s, o := startTrust(t)
		s.set(bundle("one", "", "", a[0]))
		p, src := trusting("1", "one")
		if _, err := o.TrustBundle(t.Context(), p, src); err == nil {
			t.Error("bundles for a pod that is not registered")
		}
		o.Register(podWith("2", nil, nil))
		if got := s.watched(); len(got) != 0 {
			t.Errorf("watched: %v", got)
		}
		o.Register(p)
		o.Register(p)
		if got, err := o.TrustBundle(t.Context(), p, src); err != nil || string(got) != a[0] {
			t.Errorf("got %s, %v", got, err)
		}
		if got := told(o); got != nil {
			t.Errorf("told at first sight: %v", got)
		}
		s.change(func(string) {}) // a list that brings nothing new
		if got := told(o); got != nil {
			t.Errorf("told of nothing: %v", got)
		}
		s.set(bundle("one", "", "", a[1]))
		if got := told(o); !slices.Equal(got, []string{"1"}) {
			t.Errorf("told: %v", got)
		}
		if got, err := o.TrustBundle(t.Context(), p, src); err != nil || string(got) != a[1] {
			t.Errorf("got %s, %v", got, err)
		}
		o.Unregister("1")
		if got := s.watched(); len(got) != 0 {
			t.Errorf("watched without a pod: %v", got)
		}
		o.Register(p)
		if got, err := o.TrustBundle(t.Context(), p, src); err != nil || string(got) != a[1] {
			t.Errorf("again: got %s, %v", got, err)
		}
	})
}

func TestBundlesThatCannotBeHad(t *testing.T) {
	a := anchorsOf(t, "a")
	synctest.Test(t, func(t *testing.T) {
		s, o := startTrust(t)
		s.change(func(string) { s.silent = true })
		p, src := trusting("1", "one")
		o.Register(p)
		began := time.Now()
		_, err := o.TrustBundle(t.Context(), p, src)
		messagestest.SawError(err)
		if err == nil || err.Error() != "ClusterTrustBundle informer has not yet synced" || time.Since(began) != 10*time.Second {
			t.Errorf("got %v after %s", err, time.Since(began))
		}
		s.absent = true
		began = time.Now()
		_, err = o.TrustBundle(t.Context(), p, src)
		messagestest.SawError(err)
		const none = "ClusterTrustBundle projection is not supported in static kubelet mode: "
		if err == nil || !strings.HasPrefix(err.Error(), none) || !strings.Contains(err.Error(), "feature gate ClusterTrustBundle") || time.Since(began) != 0 {
			t.Errorf("got %v after %s", err, time.Since(began))
		}
		// The pod that gave up is told.
		s.change(func(string) { s.absent, s.silent = false, false })
		s.set(bundle("one", "", "", a[0]))
		if got := told(o); !slices.Equal(got, []string{"1"}) {
			t.Errorf("told: %v", got)
		}
		off := start(t, newServer())
		off.Register(p)
		_, err = off.TrustBundle(t.Context(), p, src)
		if err == nil || err.Error() != none+"turn on the feature gate ClusterTrustBundleProjection" {
			t.Errorf("got %v", err)
		}
	})
}
