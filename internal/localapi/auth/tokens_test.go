package auth_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/localapi/auth"
)

func configMap(namespace, name string) *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: meta(namespace, name)}
}

// token asks for a token of a service account.
func (s *server) token(namespace, name string, spec authenticationv1.TokenRequestSpec) string {
	s.t.Helper()
	r := &authenticationv1.TokenRequest{Spec: spec}
	if err := s.tokens.Request(s.t.Context(), namespace, name, r); err != nil {
		s.t.Fatal(err)
	}
	return r.Status.Token
}

func seconds(n int64) *int64 { return &n }

func boundTo(kind, name string) *authenticationv1.BoundObjectReference {
	return &authenticationv1.BoundObjectReference{Kind: kind, APIVersion: "v1", Name: name}
}

// claimsOf are header and claims of a token; what differs each time is replaced.
func claimsOf(t *testing.T, token string) (header, claims map[string]any) {
	t.Helper()
	parts := strings.Split(token, ".")
	for i, into := range []*map[string]any{&header, &claims} {
		b, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err == nil {
			err = json.Unmarshal(b, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return header, claims
}

const issuer = "https://kubernetes.default.svc.cluster.local"

func TestClaims(t *testing.T) {
	s := newServer(t, rules)
	s.putAccount()
	account := map[string]any{"name": "robot", "uid": "uid-of-robot"}
	for _, c := range []struct {
		name       string
		spec       authenticationv1.TokenRequestSpec
		life       float64 // of the token, in seconds
		warnAfter  float64
		audiences  []any
		kubernetes map[string]any
	}{
		{name: "nothing asked", life: 3600, audiences: []any{issuer}, kubernetes: map[string]any{}},
		{
			name: "a pod", spec: authenticationv1.TokenRequestSpec{Audiences: []string{"a", "b"}, ExpirationSeconds: seconds(600), BoundObjectRef: boundTo("Pod", "web")},
			life: 600, audiences: []any{"a", "b"},
			kubernetes: map[string]any{"pod": map[string]any{"name": "web", "uid": "uid-of-web"}, "node": map[string]any{"name": "here", "uid": "uid-of-here"}},
		},
		{
			name: "a pod's volume", spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(3607), BoundObjectRef: boundTo("Pod", "web")},
			life: 365 * 24 * 3600, warnAfter: 3607, audiences: []any{issuer},
			kubernetes: map[string]any{"pod": map[string]any{"name": "web", "uid": "uid-of-web"}, "node": map[string]any{"name": "here", "uid": "uid-of-here"}},
		},
		{
			name: "a pod's volume for another", spec: authenticationv1.TokenRequestSpec{Audiences: []string{issuer, "b"}, ExpirationSeconds: seconds(3607), BoundObjectRef: boundTo("Pod", "web")},
			life: 3607, audiences: []any{issuer, "b"},
			kubernetes: map[string]any{"pod": map[string]any{"name": "web", "uid": "uid-of-web"}, "node": map[string]any{"name": "here", "uid": "uid-of-here"}},
		},
		{
			name: "a secret", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Secret", "key")}, life: 3600, audiences: []any{issuer},
			kubernetes: map[string]any{"secret": map[string]any{"name": "key", "uid": "uid-of-key"}},
		},
		{
			name: "a node", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Node", "here")}, life: 3600, audiences: []any{issuer},
			kubernetes: map[string]any{"node": map[string]any{"name": "here", "uid": "uid-of-here"}},
		},
	} {
		token := s.token("x", "robot", c.spec)
		header, claims := claimsOf(t, token)
		if header["alg"] != "ES256" || len(header) != 2 || len(header["kid"].(string)) != 43 {
			t.Errorf("%s: header %v", c.name, header)
		}
		issued := claims["iat"].(float64)
		if claims["exp"].(float64)-issued != c.life || claims["nbf"] != claims["iat"] || len(claims["jti"].(string)) != 36 {
			t.Errorf("%s: %v", c.name, claims)
		}
		want := map[string]any{
			"iss": issuer, "sub": "system:serviceaccount:x:robot", "aud": c.audiences,
			"exp": claims["exp"], "nbf": claims["nbf"], "iat": claims["iat"], "jti": claims["jti"], "kubernetes.io": c.kubernetes,
		}
		c.kubernetes["namespace"], c.kubernetes["serviceaccount"] = "x", account
		if c.warnAfter > 0 {
			c.kubernetes["warnafter"] = issued + c.warnAfter
		}
		if diff := cmp.Diff(want, claims); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestTokenRequestsThatAreRefused(t *testing.T) {
	s := newServer(t, rules)
	s.putAccount()
	s.objects.put("pods", &v1.Pod{ObjectMeta: meta("x", "other"), Spec: v1.PodSpec{ServiceAccountName: "another"}})
	ref := boundTo("Pod", "web")
	ref.UID = "of an older one"
	for _, c := range []struct {
		account string
		spec    authenticationv1.TokenRequestSpec
		want    string
	}{
		{"none", authenticationv1.TokenRequestSpec{}, `serviceaccounts "none" not found`},
		{"robot", authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(599)}, "may not specify a duration less than 10 minutes"},
		{"robot", authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(1<<32 + 1)}, "may not specify a duration larger than 2^32 seconds"},
		{"robot", authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Pod", "none")}, `pods "none" not found`},
		{"robot", authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Pod", "other")}, "different serviceaccount name"},
		{"robot", authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("ConfigMap", "c")}, "cannot bind token"},
		{"robot", authenticationv1.TokenRequestSpec{BoundObjectRef: ref}, "does not match the UID in record"},
	} {
		r := &authenticationv1.TokenRequest{Spec: c.spec}
		if err := s.tokens.Request(t.Context(), "x", c.account, r); err == nil || !strings.Contains(err.Error(), c.want) || r.Status.Token != "" {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

// TestBoundTokens ends a token with what it is bound to.
func TestBoundTokens(t *testing.T) {
	past := metav1.NewTime(time.Now().Add(-2 * time.Minute))
	soon := metav1.NewTime(time.Now().Add(time.Minute))
	for _, c := range []struct {
		name   string
		ref    *authenticationv1.BoundObjectReference
		change func(*objects)
		want   string // "" is good
	}{
		{name: "nothing happens", ref: boundTo("Pod", "web"), change: func(*objects) {}},
		{"the pod goes", boundTo("Pod", "web"), func(o *objects) { o.remove("pods/x/web") }, `invalidated: pods "web" is gone`},
		{"another pod of the name", boundTo("Pod", "web"), func(o *objects) {
			p := &v1.Pod{ObjectMeta: meta("x", "web")}
			p.UID = "new"
			o.put("pods", p)
		}, `pods "web" is another one`},
		{name: "the pod ends", ref: boundTo("Pod", "web"), change: func(o *objects) {
			p := &v1.Pod{ObjectMeta: meta("x", "web")}
			p.DeletionTimestamp = &soon
			o.put("pods", p)
		}},
		{"the pod has ended", boundTo("Pod", "web"), func(o *objects) {
			p := &v1.Pod{ObjectMeta: meta("x", "web")}
			p.DeletionTimestamp = &past
			o.put("pods", p)
		}, `pods "web" is deleted`},
		{"the account goes", nil, func(o *objects) { o.remove("serviceaccounts/x/robot") }, `serviceaccounts "robot" is gone`},
		{"the secret goes", boundTo("Secret", "key"), func(o *objects) { o.remove("secrets/x/key") }, `secrets "key" is gone`},
		{"the node goes", boundTo("Node", "here"), func(o *objects) { o.remove("nodes//here") }, `nodes "here" is gone`},
		{name: "the node of the pod goes", ref: boundTo("Pod", "web"), change: func(o *objects) { o.remove("nodes//here") }},
	} {
		s := newServer(t, rules)
		s.putAccount()
		token := s.token("x", "robot", authenticationv1.TokenRequestSpec{BoundObjectRef: c.ref})
		c.change(s.objects)
		u, _, err := s.tokens.Check(t.Context(), token, nil)
		code := s.do(s.stranger(), "GET /version", "", "Authorization: Bearer "+token).code
		if c.want == "" {
			if err != nil || u.Name != "system:serviceaccount:x:robot" || code != http.StatusOK {
				t.Errorf("%s: %v, %d", c.name, err, code)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.want) || code != http.StatusUnauthorized {
			t.Errorf("%s: %v, want %s; %d", c.name, err, c.want, code)
		}
	}
}

// TestObjectsAway cannot tell whether a token is good: it does not say that it is bad, as a client
// may throw it away then.
func TestObjectsAway(t *testing.T) {
	s := newServer(t, rules)
	s.putAccount()
	token := s.token("x", "robot", authenticationv1.TokenRequestSpec{})
	s.objects.mu.Lock()
	s.objects.err = errors.New("the disk is away")
	s.objects.mu.Unlock()
	if got := s.do(s.stranger(), "GET /version", "", "Authorization: Bearer "+token); got.code != http.StatusInternalServerError {
		t.Errorf("%d %s", got.code, got.body)
	}
	if got := s.do(s.client("patcher"), "PUT /apis/coordination.k8s.io/v1/namespaces/x/leases/l", "{}"); got.code != http.StatusInternalServerError {
		t.Errorf("a write that may create: %d %s", got.code, got.body)
	}
}

func TestKeyOfTokensStays(t *testing.T) {
	s := newServer(t, rules)
	s.putAccount()
	token := s.token("x", "robot", authenticationv1.TokenRequestSpec{})
	again, err := auth.OpenTokens(auth.TokensConfig{Dir: s.dir + "/api", Objects: s.objects})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := again.Check(t.Context(), token, nil); err != nil {
		t.Errorf("after a start: %v", err)
	}
	other, err := auth.OpenTokens(auth.TokensConfig{Dir: t.TempDir(), Objects: s.objects})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := other.Check(t.Context(), token, nil); err == nil {
		t.Error("the token of another key is good")
	}
	if err := os.WriteFile(s.dir+"/api/tokens.pem", []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = auth.OpenTokens(auth.TokensConfig{Dir: s.dir + "/api", Objects: s.objects})
	if err == nil || !strings.Contains(err.Error(), "/api/tokens.pem: it holds no key in PEM form; restore it from a backup, or remove it") {
		t.Errorf("a broken key: %v", err)
	}
}

func TestOpenID(t *testing.T) {
	s := newServer(t, rules)
	s.putAccount()
	token := s.token("x", "robot", authenticationv1.TokenRequestSpec{})
	bearer := "Authorization: Bearer " + token
	got := s.do(s.stranger(), "GET /.well-known/openid-configuration", "", bearer)
	want := `{"issuer":"https://kubernetes.default.svc.cluster.local","jwks_uri":"https://kubernetes.default.svc/openid/v1/jwks","response_types_supported":["id_token"],"subject_types_supported":["public"],"id_token_signing_alg_values_supported":["ES256"]}`
	if got.code != http.StatusOK || got.body != want || got.header.Get("Content-Type") != "application/json" {
		t.Errorf("%d %s %v", got.code, got.body, got.header)
	}
	got = s.do(s.stranger(), "GET /openid/v1/jwks", "", bearer)
	var keys struct{ Keys []map[string]string }
	if err := json.Unmarshal([]byte(got.body), &keys); err != nil || len(keys.Keys) != 1 || got.header.Get("Content-Type") != "application/jwk-set+json" {
		t.Fatalf("%d %s: %v", got.code, got.body, err)
	}
	header, _ := claimsOf(t, token)
	k := keys.Keys[0]
	if k["kid"] != header["kid"] || k["use"] != "sig" || k["kty"] != "EC" || k["crv"] != "P-256" || k["alg"] != "ES256" || k["x"] == "" || k["y"] == "" || len(k) != 7 {
		t.Errorf("key %v", k)
	}
}

// FuzzTokens has no text be a good token but what was signed.
func FuzzTokens(f *testing.F) {
	o := &objects{}
	o.put("serviceaccounts", &v1.ServiceAccount{ObjectMeta: meta("x", "robot")})
	tokens, err := auth.OpenTokens(auth.TokensConfig{Dir: f.TempDir(), Objects: o})
	if err != nil {
		f.Fatal(err)
	}
	r := &authenticationv1.TokenRequest{}
	if err := tokens.Request(context.Background(), "x", "robot", r); err != nil {
		f.Fatal(err)
	}
	good := r.Status.Token
	parts := strings.Split(good, ".")
	for _, seed := range []string{
		good, "", ".", "..", "a.b.c", parts[0] + "." + parts[1] + ".", parts[0] + ".e30." + parts[2], "eyJhbGciOiJub25lIn0." + parts[1] + ".",
		"eyJhbGciOiJIUzI1NiJ9." + parts[1] + "." + parts[2], `{"payload":"` + parts[1] + `","protected":"` + parts[0] + `","signature":"` + parts[2] + `"}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		_, _, err := tokens.Check(t.Context(), token, nil)
		if err == nil && signed(token) != signed(good) {
			t.Errorf("%q is good", token)
		}
	})
}

// signed is what of a token is signed: the last bits of its signature may be spelled in ways.
func signed(token string) string {
	at := strings.LastIndex(token, ".")
	return token[:max(at, 0)]
}
