//go:build e2e

package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth/internal/localapi/auth"
	"berth/internal/localapi/kinds"
)

// The same rules for kube-apiserver and for the local API.
const (
	accessRBAC = `
kind: ClusterRole
apiVersion: rbac.authorization.k8s.io/v1
metadata: {name: ci}
rules:
- {apiGroups: [""], resources: [pods, pods/log], verbs: [get, list, watch]}
---
kind: RoleBinding
apiVersion: rbac.authorization.k8s.io/v1
metadata: {name: ci, namespace: default}
roleRef: {kind: ClusterRole, name: ci, apiGroup: rbac.authorization.k8s.io}
subjects: [{kind: User, name: ci, apiGroup: rbac.authorization.k8s.io}]
---
kind: ClusterRole
apiVersion: rbac.authorization.k8s.io/v1
metadata: {name: patcher}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [patch, update]}
- {apiGroups: [""], resources: [pods/exec, pods/attach, pods/portforward], verbs: [get]}
- {apiGroups: ["authentication.k8s.io"], resources: [tokenreviews], verbs: [create]}
- {apiGroups: ["authorization.k8s.io"], resources: [subjectaccessreviews, localsubjectaccessreviews], verbs: [create]}
- {apiGroups: [""], resources: [serviceaccounts/token], verbs: [create]}
---
kind: ClusterRoleBinding
apiVersion: rbac.authorization.k8s.io/v1
metadata: {name: patcher}
roleRef: {kind: ClusterRole, name: patcher, apiGroup: rbac.authorization.k8s.io}
subjects: [{kind: User, name: patcher, apiGroup: rbac.authorization.k8s.io}]
---
kind: ServiceAccount
apiVersion: v1
metadata: {name: robot, namespace: default}
`
	accessRules = `
rules:
- {users: [ci], verbs: [get, list, watch], resources: [pods, pods/log], namespaces: [default]}
- {users: [patcher], verbs: [patch, update], resources: [configmaps]}
- {users: [patcher], verbs: [get], resources: [pods/exec, pods/attach, pods/portforward]}
- {users: [patcher], verbs: [create], resources: [tokenreviews, subjectaccessreviews, localsubjectaccessreviews, serviceaccounts/token]}
`
)

// accessRequests are for both servers: user, method, path, content type and body. What they ask for
// is refused, or is a review.
var accessRequests = []struct{ user, method, path, contentType, body string }{
	{"ci", "GET", "/api/v1/pods", "", ""},
	{"ci", "GET", "/api/v1/namespaces/kube-system/pods", "", ""},
	{"ci", "GET", "/api/v1/namespaces/kube-system/pods/p", "", ""},
	{"ci", "GET", "/api/v1/namespaces/default/pods/p/status", "", ""},
	{"ci", "GET", "/api/v1/namespaces/default/pods/p/proxy/a/b", "", ""},
	{"ci", "DELETE", "/api/v1/namespaces/default/pods", "", ""},
	{"ci", "POST", "/api/v1/namespaces/default/pods", "application/json", "{"},
	{"ci", "POST", "/api/v1/namespaces/default/pods/p/exec", "", ""},
	{"ci", "GET", "/apis/apps/v1/namespaces/default/deployments", "", ""},
	{"ci", "GET", "/api/v1/nodes/n", "", ""},
	{"ci", "GET", "/api/v1/namespaces/default", "", ""},
	{"ci", "GET", "/api/v1/watch/pods", "", ""},
	{"ci", "GET", "/api/v1/configmaps?fieldSelector=metadata.name%3Da", "", ""},
	{"ci", "GET", "/metrics", "", ""},
	{"ci", "POST", "/version", "", ""},
	{"ci", "GET", "/nothing", "", ""},
	{"patcher", "GET", "/api/v1/namespaces/default/pods/p/exec?command=sh", "websocket", ""},
	{"patcher", "GET", "/api/v1/namespaces/default/pods/p/portforward", "websocket", ""},
	{"patcher", "PATCH", "/api/v1/namespaces/default/configmaps/new?fieldManager=m", "application/apply-patch+yaml", `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"new"}}`},
	{"ci", "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "", `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"resourceAttributes":{"verb":"list","resource":"pods"}}}`},
	{"ci", "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "", `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"resourceAttributes":{"verb":"list","resource":"pods","namespace":"default"}}}`},
	{"ci", "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "", `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"nonResourceAttributes":{"verb":"get","path":"/version"}}}`},
	{"ci", "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "", `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{}}`},
	{"ci", "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "", `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"nonResourceAttributes":{"verb":"get"},"resourceAttributes":{"verb":"list"}}}`},
	{"ci", "POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", "", `{"kind":"SelfSubjectRulesReview","apiVersion":"authorization.k8s.io/v1","spec":{}}`},
	{"ci", "GET", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", "", ""},
	{"admin", "GET", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", "", ""},
	{"admin", "GET", "/api/v1/namespaces/default/serviceaccounts/robot/token", "", ""},
	{"ci", "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", "", `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}`},
	{"ci", "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", "text/plain", `x`},
	{"ci", "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews?fieldValidation=Strict", "", `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","x":1}`},
	{"ci", "POST", "/apis/authentication.k8s.io/v1/tokenreviews", "", `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":"rubbish"}}`},
	{"patcher", "POST", "/apis/authentication.k8s.io/v1/tokenreviews", "", `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":"rubbish"}}`},
	{"patcher", "POST", "/apis/authentication.k8s.io/v1/tokenreviews", "", `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{}}`},
	{"patcher", "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", "", `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"resourceAttributes":{"verb":"list"}}}`},
	{"patcher", "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", "", `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"user":"ci","resourceAttributes":{"verb":"get","resource":"pods","namespace":"default","subresource":"log"}}}`},
	{"patcher", "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", "", `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"groups":["system:masters"],"resourceAttributes":{"verb":"*","resource":"*"}}}`},
	{"patcher", "POST", "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews", "", `{"kind":"LocalSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"user":"ci","resourceAttributes":{"verb":"get","namespace":"x","resource":"pods"}}}`},
	{"patcher", "POST", "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews", "", `{"kind":"LocalSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","metadata":{"namespace":"default"},"spec":{"user":"ci","resourceAttributes":{"verb":"get","namespace":"default","resource":"pods"}}}`},
	{"patcher", "POST", "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews", "", `{"kind":"LocalSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","metadata":{"namespace":"x"},"spec":{"user":"ci","resourceAttributes":{"verb":"get","namespace":"default","resource":"pods"}}}`},
	{"patcher", "POST", "/api/v1/namespaces/default/serviceaccounts/none/token", "", `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{}}`},
	{"patcher", "POST", "/api/v1/namespaces/default/serviceaccounts/robot/token", "", `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"expirationSeconds":5}}`},
	{"patcher", "POST", "/api/v1/namespaces/default/serviceaccounts/robot/token", "", `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"none"}}}`},
	{"patcher", "POST", "/api/v1/namespaces/default/serviceaccounts/robot/token", "", `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"boundObjectRef":{"kind":"ConfigMap","apiVersion":"v1","name":"none"}}}`},
	{"patcher", "POST", "/api/v1/namespaces/default/serviceaccounts/robot/token", "", `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","metadata":{"name":"x"},"spec":{}}`},
}

// TestAccessAsKubeAPIServer asks the local API and a real kube-apiserver with the same rules the
// same: what they refuse and what they say of rights must be the same.
func TestAccessAsKubeAPIServer(t *testing.T) {
	t.Parallel()
	c := newControlPlane(t)
	c.up()
	c.mustKubectl(accessRBAC, "apply", "-f", "-")
	var account v1.ServiceAccount
	if err := json.Unmarshal([]byte(c.mustKubectl("", "get", "serviceaccount", "robot", "-o", "json")), &account); err != nil {
		t.Fatal(err)
	}
	theirs, err := clientcmd.BuildConfigFromFlags("", c.dir+"/admin.kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	ours := localAccess(t, &account)
	real, local := newAsker(t, theirs), newAsker(t, ours)
	for _, r := range accessRequests {
		want, got := real.ask(r.user, r.method, r.path, r.contentType, r.body), local.ask(r.user, r.method, r.path, r.contentType, r.body)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s %s %s (-kube-apiserver +local API):\n%s", r.user, r.method, r.path, r.body, diff)
		}
	}
	const bad = "Bearer rubbish"
	if diff := cmp.Diff(real.stranger(bad), local.stranger(bad)); diff != "" {
		t.Errorf("a bad token (-kube-apiserver +local API):\n%s", diff)
	}
	compareTokens(t, real, local)
	askByKubectl(t, c, ours)
}

// askByKubectl asks the local API as a user does, by a kubeconfig.
func askByKubectl(t *testing.T, c *controlPlane, ours *rest.Config) {
	kubectl := func(args ...string) string {
		t.Helper()
		flags := []string{"kubectl", "--kubeconfig=/dev/null", "--server=" + ours.Host, "--certificate-authority=" + c.dir + "/ca", "--client-certificate=" + c.dir + "/cert", "--client-key=" + c.dir + "/key"}
		out, err := c.run("", append(flags, args...)...)
		if err != nil && out == "" {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(out), " ")
	}
	for name, content := range map[string][]byte{"ca": ours.CAData, "cert": ours.CertData, "key": ours.KeyData} {
		if err := os.WriteFile(c.dir+"/"+name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []struct {
		args string
		want string
	}{
		{"auth whoami -o jsonpath={.status.userInfo.username},{.status.userInfo.groups}", `kubernetes-admin,["system:masters","system:authenticated"]`},
		{"auth whoami --as=ci -o jsonpath={.status.userInfo.username},{.status.userInfo.groups}", `ci,["system:authenticated"]`},
		{"auth can-i get pods -n default --as=ci", "yes"},
		{"auth can-i get pods -n kube-system --as=ci", "no"},
		{"auth can-i get /version --as=ci", "yes"},
		{"auth can-i get /metrics --as=ci", "no"},
		{"auth can-i --list -n default --as=ci --no-headers", "pods/log [] [] [get list watch]"},
	} {
		if got := kubectl(strings.Fields(r.args)...); got != r.want && !(strings.Contains(r.args, "--list") && strings.Contains(got, r.want)) && !strings.HasPrefix(got, r.want+" - ") {
			t.Errorf("kubectl %s: %q, want %q", r.args, got, r.want)
		}
	}
}

// compareTokens has both sign a token, and review it.
func compareTokens(t *testing.T, real, local *asker) {
	claims := map[*asker]map[string]any{}
	reviewed := map[*asker]any{}
	for _, a := range []*asker{real, local} {
		made := a.ask("patcher", "POST", "/api/v1/namespaces/default/serviceaccounts/robot/token", "", `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"audiences":["a"]}}`)
		token, _ := made["status"].(map[string]any)["token"].(string)
		claims[a] = tokenClaims(t, token)
		reviewed[a] = a.ask("patcher", "POST", "/apis/authentication.k8s.io/v1/tokenreviews", "", `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"audiences":["b","a"],"token":"`+token+`"}}`)["status"]
		claims[a]["exp"] = claims[a]["exp"].(float64) - claims[a]["iat"].(float64)
		for _, key := range []string{"iat", "nbf", "jti", "iss"} {
			if claims[a][key] == nil {
				t.Errorf("the claim %s is not there: %v", key, claims[a])
			}
			delete(claims[a], key)
		}
	}
	if diff := cmp.Diff(claims[real], claims[local]); diff != "" {
		t.Errorf("claims (-kube-apiserver +local API):\n%s", diff)
	}
	if diff := cmp.Diff(reviewed[real], reviewed[local]); diff != "" {
		t.Errorf("review of a token (-kube-apiserver +local API):\n%s", diff)
	}
}

// asker sends requests as one who acts for others.
type asker struct {
	t      *testing.T
	host   string
	client *http.Client
	cfg    *rest.Config
}

func newAsker(t *testing.T, cfg *rest.Config) *asker {
	t.Helper()
	cfg.NextProtos = []string{"http/1.1"} // a WebSocket begins so
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &asker{t, cfg.Host, client, cfg}
}

// volatile is what differs each time.
var volatile = regexp.MustCompile(`JTI=[0-9a-f-]+|X509SHA256=[0-9a-f]+`)

// ask returns the code and what matters of an answer.
func (a *asker) ask(user, method, path, contentType, body string) map[string]any {
	a.t.Helper()
	r, err := http.NewRequestWithContext(a.t.Context(), method, a.host+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	if user != "admin" {
		r.Header.Set("Impersonate-User", user)
	}
	if contentType == "websocket" {
		for _, h := range [][2]string{{"Connection", "Upgrade"}, {"Upgrade", "websocket"}, {"Sec-Websocket-Version", "13"}, {"Sec-Websocket-Key", "SGVsbG8sIHdvcmxkIQ=="}, {"Sec-Websocket-Protocol", "v5.channel.k8s.io"}} {
			r.Header.Set(h[0], h[1])
		}
	} else if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	return a.answer(a.client.Do(r))
}

// stranger sends a request with a header alone.
func (a *asker) stranger(authorization string) map[string]any {
	a.t.Helper()
	client, err := rest.HTTPClientFor(rest.AnonymousClientConfig(a.cfg))
	if err != nil {
		a.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(a.t.Context(), http.MethodGet, a.host+"/api/v1/pods", http.NoBody)
	if err != nil {
		a.t.Fatal(err)
	}
	r.Header.Set("Authorization", authorization)
	return a.answer(client.Do(r))
}

func (a *asker) answer(resp *http.Response, err error) map[string]any {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	var o map[string]any
	if err := json.Unmarshal(volatile.ReplaceAll(b, []byte("ID")), &o); err != nil {
		a.t.Fatalf("%d %s: %v", resp.StatusCode, b, err)
	}
	for _, key := range []string{"metadata", "spec"} { // managed fields and the like
		delete(o, key)
	}
	if status, ok := o["status"].(map[string]any); ok {
		if text, _ := status["reason"].(string); text != "" {
			status["reason"] = "why" // rules have other names
		}
	}
	if text, _ := o["message"].(string); strings.HasPrefix(text, `pods "p" is forbidden: User "patcher" cannot create`) {
		o["message"] = `pods "p" is forbidden: ` // the real one does not say what is lacking
	}
	o["HTTP"] = resp.StatusCode
	return o
}

// knownObjects are the objects of the local API, in memory.
type knownObjects struct{ account *v1.ServiceAccount }

func (o knownObjects) Get(_ context.Context, k *kinds.Kind, namespace, name string) (kinds.Object, error) {
	if k.Plural == "serviceaccounts" && namespace == o.account.Namespace && name == o.account.Name {
		return o.account, nil
	}
	return nil, apierrors.NewNotFound(k.Resource(), name)
}

// localAccess serves the door of the local API, with nothing behind it, and returns how its
// administrator reaches it.
func localAccess(t *testing.T, account *v1.ServiceAccount) *rest.Config {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/access.yaml", []byte(accessRules), 0o600); err != nil {
		t.Fatal(err)
	}
	objects := knownObjects{account}
	authority, err := auth.OpenAuthority(dir + "/api")
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := auth.OpenTokens(auth.TokensConfig{Dir: dir + "/api", Objects: objects})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	door := auth.New(auth.Config{Authority: authority, Tokens: tokens, Objects: objects, Log: log, Rules: auth.NewRulesFile(dir+"/access.yaml", log)})
	server := &http.Server{TLSConfig: authority.TLS(), Handler: door.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(metav1.Status{Message: "it came through"})
	}))}
	auth.Bound(server)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(l, "", "") }()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
	content, err := auth.Kubeconfig(authority, dir+"/access.yaml", auth.Grant{
		Rule: auth.Rule{Users: []string{"kubernetes-admin"}, Groups: []string{"system:masters"}}, Life: time.Hour, Server: "https://" + l.Addr().String(),
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig(content)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func tokenClaims(t *testing.T, token string) map[string]any {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("%q is no token", token)
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims map[string]any
	if err := json.Unmarshal(b, &claims); err != nil {
		t.Fatal(err)
	}
	return claims
}
