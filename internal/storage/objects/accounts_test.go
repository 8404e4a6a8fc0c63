package objects

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func account(uid string) *v1.ServiceAccount {
	a := &v1.ServiceAccount{}
	a.Namespace, a.Name, a.UID = "ns", "account", podWith(uid, nil, nil).UID
	return a
}

// While the server gives no answer, the account of a registered pod is what it was.
func TestServiceAccount(t *testing.T) {
	down, gone := errors.New("no route"), apierrors.NewNotFound(v1.Resource("serviceaccounts"), "account")
	for name, tt := range map[string]struct {
		registered bool
		first      error
		then       error
		want       string
	}{
		"newest":                     {true, nil, nil, "2"},
		"server away":                {true, nil, down, "1"},
		"gone":                       {true, nil, gone, `read service account ns/account: serviceaccounts "account" not found`},
		"forbidden":                  {true, nil, apierrors.NewForbidden(v1.Resource("serviceaccounts"), "account", down), `read service account ns/account: serviceaccounts "account" is forbidden: no route`},
		"never read":                 {true, down, down, "read service account ns/account: no route"},
		"of a pod that nobody knows": {false, nil, down, "read service account ns/account: no route"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			o, err := New(Config{API: s, Classes: s, Accounts: s})
			if err != nil {
				t.Fatal(err)
			}
			p := podWith("1", nil, nil)
			if tt.registered {
				o.Register(p)
				o.Register(p)
			}
			s.account, s.accountErr = account("1"), tt.first
			if _, err := o.ServiceAccount(t.Context(), p); !errors.Is(err, tt.first) {
				t.Errorf("first: %v", err)
			}
			s.account, s.accountErr = account("2"), tt.then
			got := ""
			if a, err := o.ServiceAccount(t.Context(), p); err != nil {
				got = err.Error()
			} else {
				got = string(a.UID)
			}
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			o.Unregister("1")
			if len(o.accounts.last) != 0 {
				t.Errorf("left: %v", o.accounts.last)
			}
		})
	}
}

// hanging answers nothing.
type hanging struct{ *server }

func (hanging) GetServiceAccount(ctx context.Context, _, _ string) (*v1.ServiceAccount, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// A server that hangs is not waited for long, once the account is known.
func TestServiceAccountOfServerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		a := newAccounts(hanging{s})
		p := podWith("1", nil, nil)
		a.register("1")
		a.remember("1", account("7"))
		began := time.Now()
		got, err := a.get(t.Context(), p)
		if err != nil || got.UID != "7" || time.Since(began) != accountWait {
			t.Errorf("after %v: %v, %v", time.Since(began), got, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := a.get(ctx, p); !errors.Is(err, context.Canceled) {
			t.Errorf("for a caller that is gone: %v", err)
		}
	})
}

// A token for images is renewed when it is asked for, not before, and is no volume's.
func TestImageToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		o := start(t, s)
		p := podWith("1", nil, nil)
		get := func(want string) {
			t.Helper()
			if token, err := o.ImageToken(t.Context(), p, account("9"), "registry"); err != nil || token != want {
				t.Errorf("got %s, %v, want %s", token, err, want)
			}
		}
		get("token 1 of ns/account")
		get("token 1 of ns/account")
		if token, err := o.Token(t.Context(), p, &v1.ServiceAccountTokenProjection{Audience: "vault", ExpirationSeconds: ptr.To(int64(365 * 24 * 3600))}); err != nil || token != "token 2 of ns/account" {
			t.Errorf("got %s, %v", token, err)
		}
		request := s.tokens[0]
		if d := cmp.Diff(&authenticationv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{UID: "9"}, Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{"registry"}, ExpirationSeconds: ptr.To(int64(3600)),
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "p-1", UID: "1"},
		}}, request); d != "" {
			t.Error(d)
		}
		time.Sleep(50 * time.Minute)
		if got := told(o); got != nil {
			t.Errorf("told %v", got)
		}
		get("token 3 of ns/account")
		time.Sleep(2 * time.Hour)
		if got := told(o); got != nil {
			t.Errorf("told %v", got)
		}
		if len(o.tokens.cache) != 1 {
			t.Errorf("kept: %v, want that of the volume alone", o.tokens.cache)
		}
	})
}
