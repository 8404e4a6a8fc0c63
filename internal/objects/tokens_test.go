package objects

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestComputeRenewal(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	issued := func(life time.Duration) *authenticationv1.TokenRequest {
		return &authenticationv1.TokenRequest{
			Spec:   authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(life / time.Second))},
			Status: authenticationv1.TokenRequestStatus{ExpirationTimestamp: metav1.Time{Time: now.Add(life)}},
		}
	}
	for _, tc := range []struct {
		life, jitter, want time.Duration
	}{
		{time.Hour, 0, 48 * time.Minute},
		{time.Hour, 10 * time.Second, 48*time.Minute - 10*time.Second},
		{30 * time.Hour, 0, 24 * time.Hour},
		{365 * 24 * time.Hour, 3 * time.Second, 24*time.Hour - 3*time.Second},
	} {
		if got := computeRenewal(issued(tc.life), tc.jitter).Sub(now); got != tc.want {
			t.Errorf("life %s, jitter %s: got %s, want %s", tc.life, tc.jitter, got, tc.want)
		}
	}
	if got := computeRenewal(&authenticationv1.TokenRequest{}, 0); !got.IsZero() {
		t.Errorf("a token without a life: got %s, want never", got)
	}
}

func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		o := start(t, s)
		p := podWith("1", nil, nil)
		get := func(src v1.ServiceAccountTokenProjection) string {
			t.Helper()
			token, err := o.Token(t.Context(), p, &src)
			if err != nil {
				return err.Error()
			}
			return token
		}
		vault := v1.ServiceAccountTokenProjection{Audience: "vault", ExpirationSeconds: ptr.To(int64(600))}
		for range 2 {
			if got := get(v1.ServiceAccountTokenProjection{}); got != "token 1 of ns/account" {
				t.Errorf("got %s", got)
			}
			if got := get(vault); got != "token 2 of ns/account" {
				t.Errorf("got %s", got)
			}
		}
		bound := &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "p-1", UID: "1"}
		want := []authenticationv1.TokenRequestSpec{
			{ExpirationSeconds: ptr.To(int64(3600)), BoundObjectRef: bound},
			{ExpirationSeconds: ptr.To(int64(600)), BoundObjectRef: bound, Audiences: []string{"vault"}},
		}
		if d := cmp.Diff(want, []authenticationv1.TokenRequestSpec{s.tokens[0].Spec, s.tokens[1].Spec}); d != "" {
			t.Error(d)
		}
		if got := told(o); got != nil {
			t.Errorf("told %v", got)
		}

		// The one of ten minutes is due at eight.
		time.Sleep(8 * time.Minute)
		if got := told(o); !slices.Equal(got, []string{"1"}) {
			t.Errorf("told %v", got)
		}
		if got := get(vault); got != "token 3 of ns/account" {
			t.Errorf("got %s", got)
		}
		if got := get(v1.ServiceAccountTokenProjection{}); got != "token 1 of ns/account" {
			t.Errorf("got %s", got)
		}

		// A server that refuses: the old one serves while it is valid, and the pod is told each minute.
		s.failTokens(errors.New("not now"))
		time.Sleep(8 * time.Minute)
		for range 2 {
			if got := told(o); !slices.Equal(got, []string{"1"}) {
				t.Errorf("told %v", got)
			}
			if got := get(vault); got != "token 3 of ns/account" {
				t.Errorf("got %s", got)
			}
			time.Sleep(time.Minute)
		}
		if got := told(o); !slices.Equal(got, []string{"1"}) {
			t.Errorf("told %v at the end of the token", got)
		}
		if got := get(vault); got == "token 3 of ns/account" {
			t.Error("an expired token was given out")
		}
		s.failTokens(nil)
		if got := get(vault); got != "token 4 of ns/account" {
			t.Errorf("got %s", got)
		}

		o.tokens.forget("1")
		if len(o.tokens.cache)+len(o.tokens.wake) != 0 {
			t.Errorf("left: %v", o.tokens.cache)
		}
		if got := get(vault); got != "token 5 of ns/account" {
			t.Errorf("got %s", got)
		}
		o.Unregister("1")
		told(o)
		time.Sleep(48 * time.Hour)
		if got := told(o); got != nil {
			t.Errorf("told %v of tokens that were dropped", got)
		}
	})
}

func TestExpiredTokenSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		o, err := New(Config{API: s, Classes: s, Accounts: s}) // not running, so that nothing is purged
		if err != nil {
			t.Fatal(err)
		}
		p := podWith("1", nil, nil)
		if _, err := o.Token(t.Context(), p, &v1.ServiceAccountTokenProjection{}); err != nil {
			t.Fatal(err)
		}
		no := errors.New("not now")
		s.failTokens(no)
		time.Sleep(2 * time.Hour)
		want := `token of service account ns/account for audience "" and pod 1 expired and refresh failed: not now`
		if _, err := o.Token(t.Context(), p, &v1.ServiceAccountTokenProjection{}); !errors.Is(err, no) || err.Error() != want {
			t.Errorf("got %v", err)
		}
		if _, err := o.Token(t.Context(), podWith("2", nil, nil), &v1.ServiceAccountTokenProjection{}); err == nil || err.Error() != "failed to fetch token: not now" {
			t.Errorf("got %v", err)
		}
		if _, err := New(Config{}); err == nil {
			t.Error("Objects without an API server were accepted")
		}
	})
}
