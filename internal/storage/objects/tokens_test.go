package objects

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"berth/internal/record/events/messagestest"
)

func TestComputeRenewal(t *testing.T) {
	for _, tc := range []struct {
		life, jitter, want time.Duration
	}{
		{time.Hour, 0, 48 * time.Minute},
		{time.Hour, 10 * time.Second, 48*time.Minute - 10*time.Second},
		{30 * time.Hour, 0, 24 * time.Hour},
		{365 * 24 * time.Hour, 3 * time.Second, 24*time.Hour - 3*time.Second},
	} {
		if got := computeRenewal(tc.life, tc.jitter); got != tc.want {
			t.Errorf("life %s, jitter %s: got %s, want %s", tc.life, tc.jitter, got, tc.want)
		}
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
			messagestest.SawError(err)
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

		// A server that refuses: the old one serves while it is valid, and the pod is told each
		// minute.
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

// years is by how much a clock may be wrong.
const years = 10 * 365 * 24 * time.Hour

// This node's clock may be wrong by years: a token is replaced after as much of its life as by the
// server's clock.
func TestATokenBesideAWrongClock(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"ours is behind": years, "ours is ahead": -years} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				s.ahead = ahead
				o := start(t, s)
				p := podWith("1", nil, nil)
				get := func(want string) {
					t.Helper()
					if got, err := o.Token(t.Context(), p, &v1.ServiceAccountTokenProjection{}); got != want || err != nil {
						t.Errorf("got %s, %v, want %s", got, err, want)
					}
				}
				get("token 1 of ns/account")
				time.Sleep(40 * time.Minute)
				get("token 1 of ns/account")
				if got := told(o); got != nil {
					t.Errorf("told %v before it was time", got)
				}
				time.Sleep(8 * time.Minute)
				if got := told(o); !slices.Equal(got, []string{"1"}) {
					t.Errorf("told %v when it was time", got)
				}
				get("token 2 of ns/account")
				// Drivers are told what the server said: they may have the right clock.
				if _, expires, err := o.DriverToken(t.Context(), p, "", nil); err != nil || !expires.Equal(time.Now().Add(ahead+time.Hour)) {
					t.Errorf("valid until %v, %v", expires, err)
				}
			})
		})
	}
}

// discovery is what a server says of itself.
type discovery struct {
	serves bool
	err    error
}

func (d discovery) ServesTokens(context.Context) (bool, error) { return d.serves, d.err }

// A server without tokens is told from a service account that does not exist.
func TestServersWithoutTokens(t *testing.T) {
	missing := apierrors.NewNotFound(v1.Resource("serviceaccounts"), "account")
	const none = "failed to fetch token: the API server does not have TokenRequest endpoints enabled"
	for _, tc := range []struct {
		err       error
		discovery DiscoveryAPI
		want      string
	}{
		{missing, discovery{}, none},
		{missing, discovery{serves: true}, `failed to fetch token: serviceaccounts "account" not found`},
		{missing, discovery{err: errors.New("away")}, `failed to fetch token: serviceaccounts "account" not found`},
		{missing, nil, `failed to fetch token: serviceaccounts "account" not found`},
		{errors.New("not now"), discovery{}, "failed to fetch token: not now"},
	} {
		s := newServer()
		s.failTokens(tc.err)
		o, err := New(Config{API: s, Classes: s, Accounts: s, Discovery: tc.discovery})
		if err != nil {
			t.Fatal(err)
		}
		_, err = o.Token(t.Context(), podWith("1", nil, nil), &v1.ServiceAccountTokenProjection{})
		messagestest.SawError(err)
		if err == nil || err.Error() != tc.want {
			t.Errorf("%v, %+v: got %v, want %s", tc.err, tc.discovery, err, tc.want)
		}
	}
}

// A token of which the server does not say how long it lives is never replaced.
func TestATokenWithoutALife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		o := start(t, s)
		o.tokens.create = func(ctx context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
			out, err := s.CreateToken(ctx, namespace, account, r)
			out.Spec.ExpirationSeconds = nil
			return out, err
		}
		for range 2 {
			got, err := o.Token(t.Context(), podWith("1", nil, nil), &v1.ServiceAccountTokenProjection{})
			if got != "token 1 of ns/account" || err != nil {
				t.Errorf("got %s, %v", got, err)
			}
			time.Sleep(48 * time.Hour)
			if got := told(o); got != nil {
				t.Errorf("told %v", got)
			}
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
		_, err = o.Token(t.Context(), p, &v1.ServiceAccountTokenProjection{})
		messagestest.SawError(err)
		if !errors.Is(err, no) || err.Error() != want {
			t.Errorf("got %v", err)
		}
		_, err = o.Token(t.Context(), podWith("2", nil, nil), &v1.ServiceAccountTokenProjection{})
		messagestest.SawError(err)
		if err == nil || err.Error() != "failed to fetch token: not now" {
			t.Errorf("got %v", err)
		}
		if _, err := New(Config{}); err == nil {
			t.Error("Objects without an API server were accepted")
		}
	})
}
