package auth_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"

	"berth/internal/localapi/auth"
)

const rules = `# who may what
rules:
- users: [ci]
  verbs: [get, list, watch]
  resources: [pods, pods/log]
  namespaces: [x]
- users: [deployer]
  verbs: [get, create, update, patch, delete, deletecollection]
  resources: [configmaps, pods]
  namespaces: [x]
- users: [patcher]
  verbs: [patch, update]
  resources: [configmaps, leases]
- users: [shell]
  verbs: [create, get]
  resources: [pods/exec, pods/portforward]
- users: [onlyget]
  verbs: [get]
  resources: [pods/exec]
- groups: [readers]
  verbs: [get, list]
  resources: ["*"]
- users: [one]
  verbs: [get, watch, list]
  resources: [configmaps]
  resourceNames: [settings]
- users: [prometheus]
  verbs: [get]
  nonResourceURLs: [/metrics, /metrics/*]
- users: [boss]
  verbs: [impersonate]
  resources: [users, groups, serviceaccounts, uids, userextras/scopes]
- users: [reviewer]
  verbs: [create]
  resources: [tokenreviews, subjectaccessreviews, localsubjectaccessreviews, serviceaccounts/token]
`

func TestWhoMayWhat(t *testing.T) {
	s := newServer(t, rules)
	s.objects.put("configmaps", configMap("x", "there"))
	const apply = "Content-Type: application/apply-patch+yaml"
	for _, c := range []struct {
		user, request string
		headers       []string
		want          string // "" is let through
	}{
		{user: "ci", request: "GET /api/v1/namespaces/x/pods"},
		{user: "ci", request: "GET /api/v1/namespaces/x/pods?watch=1"},
		{user: "ci", request: "GET /api/v1/namespaces/x/pods/p"},
		{user: "ci", request: "HEAD /api/v1/namespaces/x/pods/p"},
		{user: "ci", request: "GET /api/v1/namespaces/x/pods/p/log"},
		{user: "ci", request: "GET /api/v1/pods", want: `pods is forbidden: User "ci" cannot list resource "pods" in API group "" at the cluster scope`},
		{user: "ci", request: "GET /api/v1/namespaces/y/pods", want: `pods is forbidden: User "ci" cannot list resource "pods" in API group "" in the namespace "y"`},
		{user: "ci", request: "GET /api/v1/namespaces/y/pods/p", want: `pods "p" is forbidden: User "ci" cannot get resource "pods" in API group "" in the namespace "y"`},
		{user: "ci", request: "GET /api/v1/namespaces/x/pods/p/status", want: `pods "p" is forbidden: User "ci" cannot get resource "pods/status" in API group "" in the namespace "x"`},
		{user: "ci", request: "GET /api/v1/namespaces/x/pods/p/proxy/a/b", want: `pods "p" is forbidden: User "ci" cannot get resource "pods/proxy" in API group "" in the namespace "x"`},
		{user: "ci", request: "DELETE /api/v1/namespaces/x/pods", want: `pods is forbidden: User "ci" cannot deletecollection resource "pods" in API group "" in the namespace "x"`},
		{user: "ci", request: "POST /api/v1/namespaces/x/pods", want: `pods is forbidden: User "ci" cannot create resource "pods" in API group "" in the namespace "x"`},
		{user: "ci", request: "GET /apis/apps/v1/namespaces/x/deployments", want: `deployments.apps is forbidden: User "ci" cannot list resource "deployments" in API group "apps" in the namespace "x"`},
		{user: "ci", request: "GET /api/v1/nodes/n", want: `nodes "n" is forbidden: User "ci" cannot get resource "nodes" in API group "" at the cluster scope`},
		{user: "ci", request: "GET /api/v1/namespaces/x", want: `namespaces "x" is forbidden: User "ci" cannot get resource "namespaces" in API group "" in the namespace "x"`},
		{user: "ci", request: "GET /api/v1/watch/pods", want: `pods is forbidden: User "ci" cannot watch resource "pods" in API group "" at the cluster scope`},
		{user: "ci", request: "GET /metrics", want: `forbidden: User "ci" cannot get path "/metrics"`},
		{user: "ci", request: "BREW /api/v1/namespaces/x/pods", want: `pods is forbidden: User "ci" cannot  resource "pods" in API group "" in the namespace "x"`},

		{user: "nobody", request: "GET /version"},
		{user: "nobody", request: "GET /apis/apps/v1"},
		{user: "nobody", request: "GET /openapi/v3/api/v1"},
		{user: "nobody", request: "GET /healthz"},
		{user: "nobody", request: "POST /version", want: `forbidden: User "nobody" cannot post path "/version"`},
		{user: "nobody", request: "GET /healthz/etcd", want: `forbidden: User "nobody" cannot get path "/healthz/etcd"`},
		{user: "nobody", request: "GET /", want: `forbidden: User "nobody" cannot get path "/"`},
		{user: "nobody", request: "POST /apis/authentication.k8s.io/v1/tokenreviews", want: `tokenreviews.authentication.k8s.io is forbidden: User "nobody" cannot create resource "tokenreviews" in API group "authentication.k8s.io" at the cluster scope`},
		{user: "nobody", request: "GET /openid/v1/jwks", want: `forbidden: User "nobody" cannot get path "/openid/v1/jwks"`},

		{user: "deployer", request: "PUT /api/v1/namespaces/x/configmaps/there"},
		{user: "deployer", request: "PUT /api/v1/namespaces/x/configmaps/new"},
		{user: "deployer", request: "DELETE /api/v1/namespaces/x/configmaps"},
		{user: "deployer", request: "PATCH /api/v1/namespaces/x/configmaps/new", headers: []string{apply}},

		// Who may patch may not create by it.
		{user: "patcher", request: "PATCH /api/v1/namespaces/x/configmaps/there", headers: []string{apply}},
		{user: "patcher", request: "PATCH /api/v1/namespaces/x/configmaps/new", headers: []string{"Content-Type: application/merge-patch+json"}},
		{user: "patcher", request: "PUT /api/v1/namespaces/x/configmaps/there"},
		{user: "patcher", request: "PATCH /api/v1/namespaces/x/configmaps/new", headers: []string{apply}, want: `configmaps "new" is forbidden: User "patcher" cannot create resource "configmaps" in API group "" in the namespace "x"`},
		{user: "patcher", request: "PATCH /api/v1/namespaces/x/configmaps/new", headers: []string{"Content-Type: Application/Apply-Patch+CBOR; charset=x"}, want: `configmaps "new" is forbidden: User "patcher" cannot create resource "configmaps" in API group "" in the namespace "x"`},
		{user: "patcher", request: "PUT /api/v1/namespaces/x/configmaps/new"}, // which is not found
		{user: "patcher", request: "PUT /apis/coordination.k8s.io/v1/namespaces/x/leases/new", want: `leases.coordination.k8s.io "new" is forbidden: User "patcher" cannot create resource "leases" in API group "coordination.k8s.io" in the namespace "x"`},

		{user: "shell", request: "POST /api/v1/namespaces/x/pods/p/exec?command=sh"},
		{user: "shell", request: "GET /api/v1/namespaces/x/pods/p/exec?command=sh"},
		{user: "shell", request: "GET /api/v1/namespaces/x/pods/p/attach", want: `pods "p" is forbidden: User "shell" cannot get resource "pods/attach" in API group "" in the namespace "x"`},
		{user: "onlyget", request: "GET /api/v1/namespaces/x/pods/p/exec?command=sh", want: `pods "p" is forbidden: User "onlyget" cannot create resource "pods/exec" in API group "" in the namespace "x"`},

		{user: "member", request: "GET /api/v1/nodes"},
		{user: "member", request: "GET /apis/storage.k8s.io/v1/csinodes/n"},
		{user: "member", request: "GET /apis/apps/v1/deployments"},
		{user: "member", request: "GET /api/v1/pods?watch=true", want: `pods is forbidden: User "member" cannot watch resource "pods" in API group "" at the cluster scope`},
		{user: "member", request: "GET /metrics", want: `forbidden: User "member" cannot get path "/metrics"`},

		{user: "one", request: "GET /api/v1/namespaces/x/configmaps/settings"},
		{user: "one", request: "GET /api/v1/namespaces/x/configmaps?watch=1&fieldSelector=metadata.name%3Dsettings"},
		{user: "one", request: "GET /api/v1/namespaces/x/configmaps", want: `configmaps is forbidden: User "one" cannot list resource "configmaps" in API group "" in the namespace "x"`},
		{user: "one", request: "GET /api/v1/namespaces/x/configmaps?fieldSelector=metadata.name%3Dother", want: `configmaps "other" is forbidden: User "one" cannot list resource "configmaps" in API group "" in the namespace "x"`},
		{user: "one", request: "GET /api/v1/namespaces/x/configmaps?fieldSelector=metadata.name%21%3Dsettings", want: `configmaps is forbidden: User "one" cannot list resource "configmaps" in API group "" in the namespace "x"`},

		{user: "prometheus", request: "GET /metrics"},
		{user: "prometheus", request: "GET /metrics/cadvisor"},
		{user: "prometheus", request: "GET /metricsx", want: `forbidden: User "prometheus" cannot get path "/metricsx"`},

		{user: "admin", request: "DELETE /api/v1/nodes"},
		{user: "admin", request: "GET /logs/"},
	} {
		client := s.client(c.user, map[string][]string{"member": {"readers"}, "admin": {"system:masters"}}[c.user]...)
		got := s.do(client, c.request, "", c.headers...)
		if c.want == "" {
			if got.code != http.StatusOK {
				t.Errorf("%s, %s: %d %s", c.user, c.request, got.code, got.body)
			}
			continue
		}
		if st := got.status(t); got.code != http.StatusForbidden || st.Message != c.want || st.Reason != "Forbidden" || st.Code != 403 || st.Kind != "Status" {
			t.Errorf("%s, %s: %d\n got %s\nwant %s", c.user, c.request, got.code, got.body, c.want)
		}
	}
}

// selfSigned is a certificate of nobody's authority, or of one that is given.
func selfSigned(t *testing.T, parent *tls.Certificate, usage x509.ExtKeyUsage, end time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root", Organization: []string{"system:masters"}},
		NotBefore: time.Unix(0, 0), NotAfter: end, ExtKeyUsage: []x509.ExtKeyUsage{usage}, BasicConstraintsValid: true,
	}
	above, signer := template, any(key)
	if parent != nil {
		above, signer = parent.Leaf, parent.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, above, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestStrangers shows everything that makes nobody known.
func TestStrangers(t *testing.T) {
	s := newServer(t, rules)
	s.putAccount()
	later := time.Now().Add(time.Hour)
	ca, err := tls.LoadX509KeyPair(s.dir+"/api/ca.pem", s.dir+"/api/ca.pem")
	if err != nil {
		t.Fatal(err)
	}
	serving, err := tls.LoadX509KeyPair(s.dir+"/api/serving.pem", s.dir+"/api/serving.pem")
	if errors.Is(err, os.ErrNotExist) {
		s.do(s.stranger(), "GET /version", "") // it is made by the first handshake
		serving, err = tls.LoadX509KeyPair(s.dir+"/api/serving.pem", s.dir+"/api/serving.pem")
	}
	if err != nil {
		t.Fatal(err)
	}
	good := s.token("x", "robot", authenticationv1.TokenRequestSpec{})
	other := s.token("x", "robot", authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}})
	for _, c := range []struct {
		name    string
		client  *http.Client
		headers []string
	}{
		{name: "nothing", client: s.stranger()},
		{name: "a certificate of its own", client: s.stranger(selfSigned(t, nil, x509.ExtKeyUsageClientAuth, later))},
		{name: "an expired one", client: s.stranger(selfSigned(t, &ca, x509.ExtKeyUsageClientAuth, time.Unix(1, 0)))},
		{name: "one for servers", client: s.stranger(selfSigned(t, &ca, x509.ExtKeyUsageServerAuth, later))},
		{name: "the serving certificate", client: s.stranger(serving)},
		{name: "the password of somebody", client: s.stranger(), headers: []string{"Authorization: Basic cm9vdDpyb290"}},
		{name: "an empty token", client: s.stranger(), headers: []string{"Authorization: Bearer "}},
		{name: "no token", client: s.stranger(), headers: []string{"Authorization: Bearer"}},
		{name: "rubbish", client: s.stranger(), headers: []string{"Authorization: Bearer eyJhbGciOiJub25lIn0.e30."}},
		{name: "a long token", client: s.stranger(), headers: []string{"Authorization: Bearer " + strings.Repeat("a", 30000)}},
		{name: "a token for another", client: s.stranger(), headers: []string{"Authorization: Bearer " + other}},
		{name: "a token that was changed", client: s.stranger(), headers: []string{"Authorization: Bearer " + good[:len(good)-4] + "AAAA"}},
		{name: "two headers", client: s.stranger(), headers: []string{"Authorization: Bearer " + good, "Authorization: Bearer " + good}},
		{name: "a proxy's word", client: s.stranger(), headers: []string{"X-Remote-User: root", "X-Remote-Group: system:masters"}},
		{name: "another proxy's word", client: s.stranger(), headers: []string{"X-Forwarded-User: root", "X-Forwarded-For: 127.0.0.1"}},
		{name: "acting for root", client: s.stranger(), headers: []string{"Impersonate-User: root", "Impersonate-Group: system:masters"}},
	} {
		for _, request := range []string{"GET /version", "GET /api/v1/pods", "POST /api/v1/namespaces/x/pods/p/exec", "OPTIONS /", "GET /nothing"} {
			got := s.do(c.client, request, "", c.headers...)
			want := `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}` + "\n"
			if got.code != http.StatusUnauthorized || got.body != want {
				t.Errorf("%s, %s: %d %s", c.name, request, got.code, got.body)
			}
		}
	}
	if got := s.do(s.stranger(), "GET /version", "", "Authorization: Bearer "+good); got.code != http.StatusOK {
		t.Errorf("the good token: %d %s", got.code, got.body)
	}
}

// TestServerOptions sends what net/http would answer itself.
func TestServerOptions(t *testing.T) {
	s := newServer(t, rules)
	c := s.stranger()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), &tls.Config{RootCAs: c.Transport.(*http.Transport).TLSClientConfig.RootCAs})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("HTTP/1.1 401"))
	if _, err := conn.Read(line); err != nil || string(line) != "HTTP/1.1 401" {
		t.Errorf("OPTIONS *: %q, %v", line, err)
	}
}

// TestHeaders removes what somebody may say about who it is.
func TestHeaders(t *testing.T) {
	s := newServer(t, rules)
	conn := s.dial("ci") // HTTP/1.1, which has the header Connection
	headers := []string{
		"X-Remote-User: root", "x-remote-group: system:masters", "X_Remote_Uid: 0", "X-Remote-Extra-A: b", "X-Remote-Group: a",
		"Connection: X-Remote-User, Accept", "Accept: text/plain, */*",
	}
	if _, err := fmt.Fprintf(conn, "GET /api/v1/namespaces/x/pods HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n", strings.Join(headers, "\r\n")); err != nil {
		t.Fatal(err)
	}
	got, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	var told reached
	if err := json.NewDecoder(got.Body).Decode(&told); err != nil {
		t.Fatalf("%d: %v", got.StatusCode, err)
	}
	for name := range told.Headers {
		if n := strings.ToLower(name); strings.Contains(n, "remote") || strings.HasPrefix(n, "impersonate") || n == "authorization" {
			t.Errorf("%s came through", name)
		}
	}
	if told.User != "ci" || !cmp.Equal(told.Groups, []string{"system:authenticated"}) || told.Headers.Get("Accept") == "" || told.Headers.Get("Connection") != "" {
		t.Errorf("got %+v", told)
	}
}

// TestPaths are those that two servers could read differently.
func TestPaths(t *testing.T) {
	s := newServer(t, rules)
	admin := s.client("admin", "system:masters")
	for _, p := range []string{
		"//api/v1/pods", "/api//v1/pods", "/api/v1//pods", "/api/v1/namespaces//pods", "/healthz/../api/v1/pods", "/api/v1/./pods", "/api/v1/pods/..",
		"/api/v1/namespaces/x%2Fpods", "/api/v1/namespaces/x/pods/p%2fexec", "/api/v1/namespaces/x/pods/%2e%2e", "/api/v1/namespaces/x/pods/p%00", "/healthz//",
		"/api/v1/namespaces/x/pods/p/proxy/a//b", "/api/v1/namespaces/x/pods/p/proxy/../b", "/api/v1/namespaces/x/pods/p/proxy/%2f",
		"/api/v1/namespaces/proxy/pods/../../../nodes/n", "/api/v1/namespaces/proxy/pods/%2e%2e/secrets",
		"/api/v1/nodes/n/proxy/../../m", "/api/v1/nodes/n/proxy/metrics/../pods", "/api/v1/nodes/n/proxy/metrics%2f..%2fpods", "/api/v1/nodes/n/proxy//metrics",
		"/api/v1/nodes/n/proxy/%2e%2e/pods", "/api/v1/nodes/n/proxy/./metrics", "/api/v1/nodes/n/proxy/logs/a%00", "/api/v1/nodes/n/proxy/logs/a%0d%0a",
		"/api/v1/nodes/n%2fproxy%2fmetrics", "/api/v1/nodes/n/proxy/logs/..", "/api/v1/nodes/../nodes/n/proxy/metrics",
	} {
		if got := s.do(admin, "GET "+p, ""); got.code != http.StatusNotFound || got.status(t).Reason != "NotFound" {
			t.Errorf("%s: %d %s", p, got.code, got.body)
		}
	}
	for _, p := range []string{"/", "/api/v1/pods/", "/api/v1/namespaces/x/pods/p/proxy/a/b", "/api/v1/nodes/n/proxy/", "/api/v1/nodes/n/proxy/logs/", "/api/v1/nodes/n/proxy/logs/%252e%252e"} {
		if got := s.do(admin, "GET "+p, ""); got.code != http.StatusOK {
			t.Errorf("%s: %d %s", p, got.code, got.body)
		}
	}
}

func TestImpersonation(t *testing.T) {
	s := newServer(t, rules)
	boss, ci := s.client("boss"), s.client("ci")
	for _, c := range []struct {
		name    string
		client  *http.Client
		headers []string
		want    reached
		denied  string
	}{
		{"a user", boss, []string{"Impersonate-User: ci"}, reached{User: "ci", Groups: []string{"system:authenticated"}, By: "boss"}, ""},
		{
			"groups", boss,
			[]string{"Impersonate-User: u", "Impersonate-Group: readers", "Impersonate-Group: g", "Impersonate-Uid: 7", "Impersonate-Extra-Scopes: view"},
			reached{User: "u", Groups: []string{"readers", "g", "system:authenticated"}, By: "boss"},
			"",
		},
		{"an extra that it may not", boss, []string{"Impersonate-User: u", "Impersonate-Extra-Example.com%2fother: v"}, reached{}, `userextras.authentication.k8s.io "v" is forbidden: User "boss" cannot impersonate resource "userextras/example.com/other" in API group "authentication.k8s.io" at the cluster scope`},
		{"who may not", ci, []string{"Impersonate-User: boss"}, reached{}, `users "boss" is forbidden: User "ci" cannot impersonate resource "users" in API group "" at the cluster scope`},
		{"who may not, a service account", ci, []string{"Impersonate-User: system:serviceaccount:x:robot"}, reached{}, `serviceaccounts "robot" is forbidden: User "ci" cannot impersonate resource "serviceaccounts" in API group "" in the namespace "x"`},
		{"who it is then may not", boss, []string{"Impersonate-User: nobody"}, reached{}, `pods is forbidden: User "nobody" cannot list resource "pods" in API group "" in the namespace "x"`},
		{"masters", boss, []string{"Impersonate-User: u", "Impersonate-Group: system:masters"}, reached{User: "u", Groups: []string{"system:masters", "system:authenticated"}, By: "boss"}, ""},
	} {
		got := s.do(c.client, "GET /api/v1/namespaces/x/pods", "", c.headers...)
		if c.denied != "" {
			if got.code != http.StatusForbidden || got.status(t).Message != c.denied {
				t.Errorf("%s: %d %s", c.name, got.code, got.body)
			}
			continue
		}
		var told reached
		if err := json.Unmarshal([]byte(got.body), &told); err != nil {
			t.Fatalf("%s: %d %s: %v", c.name, got.code, got.body, err)
		}
		for name := range told.Headers {
			if strings.HasPrefix(name, "Impersonate") {
				t.Errorf("%s: %s came through", c.name, name)
			}
		}
		told.Headers = nil
		if diff := cmp.Diff(c.want, told); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	if got := s.do(boss, "GET /version", "", "Impersonate-Group: g"); got.code != http.StatusInternalServerError || !strings.Contains(got.body, "without impersonating a user") {
		t.Errorf("a group alone: %d %s", got.code, got.body)
	}
}

func TestUnixSocket(t *testing.T) {
	s := newServer(t, rules)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", s.socket)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	s.url = "http://localhost"
	c := &http.Client{Transport: transport}
	got := s.do(c, "DELETE /api/v1/nodes", "")
	if os.Getuid() != 0 {
		if got.code != http.StatusUnauthorized {
			t.Errorf("another user than root: %d %s", got.code, got.body)
		}
		return
	}
	var told reached
	if err := json.Unmarshal([]byte(got.body), &told); err != nil || told.User != auth.Root || !cmp.Equal(told.Groups, []string{"system:masters", "system:authenticated"}) {
		t.Errorf("%d %s: %v", got.code, got.body, err)
	}
	if got := s.do(c, "GET /version", "", "Authorization: Bearer rubbish"); got.code != http.StatusUnauthorized {
		t.Errorf("a bad token: %d %s", got.code, got.body)
	}
}

// TestNodeProxy is who reaches which path of the node API.
func TestNodeProxy(t *testing.T) {
	s := newServer(t, `
rules:
- users: [metrics]
  verbs: [get]
  resources: [nodes/metrics]
- users: [stats]
  verbs: [get]
  resources: [nodes/stats]
- users: [log]
  verbs: [get]
  resources: [nodes/log]
- users: [pods]
  verbs: [get]
  resources: [nodes/pods]
- users: [healthz]
  verbs: [get]
  resources: [nodes/healthz]
- users: [configz]
  verbs: [get]
  resources: [nodes/configz]
- users: [proxy]
  verbs: [get]
  resources: [nodes/proxy]
- users: [one]
  verbs: [get]
  resources: [nodes/proxy, nodes/metrics]
  resourceNames: [m]
- users: [creator]
  verbs: [create, update, patch, delete, list, watch]
  resources: [nodes/*]
- users: [reader]
  verbs: ["*"]
  resources: [nodes, pods/*]
- users: [owner]
  verbs: ["*"]
  resources: ["*"]
  namespaces: [x]
- users: [paths]
  verbs: ["*"]
  nonResourceURLs: ["*"]
`)
	paths := map[string]string{ // by the finer subresource
		"/metrics": "metrics", "/metrics/cadvisor": "metrics", "/metrics/resource": "metrics", "/metrics/probes": "metrics",
		"/stats/summary": "stats", "/pods": "pods", "/healthz": "healthz", "/healthz/ping": "healthz", "/logs/": "log", "/logs/syslog": "log",
		"/logs/?query=kubelet": "log", "/configz": "configz", "": "", "/": "", "/metricsx": "", "/exec/x/p/c": "", "/containerLogs/x/p/c": "", "/debug/pprof/heap": "",
	}
	users := []string{"metrics", "stats", "log", "pods", "healthz", "configz", "proxy", "one", "creator", "reader", "owner", "paths"}
	for path, subresource := range paths {
		for _, user := range users {
			for _, node := range []string{"n", "n:10250", "https:n:10250"} {
				want := http.StatusForbidden
				if user == "proxy" || user == subresource {
					want = http.StatusOK
				}
				if got := s.do(s.client(user), "GET /api/v1/nodes/"+node+"/proxy"+path, ""); got.code != want {
					t.Errorf("%s, GET %s of %s: %d %s, want %d", user, path, node, got.code, got.body, want)
				}
			}
		}
	}
	for _, c := range []struct {
		user, request string
		want          int
	}{
		{"one", "GET /api/v1/nodes/m/proxy/metrics", 200},
		{"one", "GET /api/v1/nodes/m/proxy/pods", 200},
		{"one", "GET /api/v1/nodes/m:10250/proxy/metrics", 403}, // as kube-apiserver: the rule has another name
		{"metrics", "HEAD /api/v1/nodes/n/proxy/metrics", 200},
		{"metrics", "POST /api/v1/nodes/n/proxy/metrics", 403},
		{"metrics", "OPTIONS /api/v1/nodes/n/proxy/metrics", 403},
		{"metrics", "GET /api/v1/nodes/n", 403},
		{"metrics", "GET /api/v1/nodes/metrics/proxy/pods", 403},
		{"proxy", "POST /api/v1/nodes/n/proxy/stats/summary", 403},
		{"proxy", "PUT /api/v1/nodes/n/proxy/debug/flags/v", 403},
		{"proxy", "GET /api/v1/nodes/n/proxy?watch=1", 200},
		{"proxy", "GET /api/v1/watch/nodes/n/proxy/metrics", 403},
		{"metrics", "GET /api/v1/watch/nodes/n/proxy/metrics", 403},
		{"owner", "GET /api/v1/namespaces/x/nodes/n/proxy/metrics", 200}, // which is no path of the proxy
		{"metrics", "GET /api/v1/namespaces/x/nodes/n/proxy/metrics", 403},
		{"metrics", "GET /api/v1beta1/nodes/n/proxy/metrics", 403},
		{"metrics", "GET /apis/example.com/v1/nodes/n/proxy/metrics", 403},
		{"metrics", "GET /api/v1/nodes/n/PROXY/metrics", 403},
		{"metrics", "GET /api/v1/nodes/n/proxymetrics/metrics", 403},
	} {
		if got := s.do(s.client(c.user), c.request, ""); got.code != c.want {
			t.Errorf("%s, %s: %d %s, want %d", c.user, c.request, got.code, got.body, c.want)
		}
	}
	want := `nodes "n" is forbidden: User "metrics" cannot get resource "nodes/proxy" in API group "" at the cluster scope`
	if got := s.do(s.client("metrics"), "GET /api/v1/nodes/n/proxy/pods", ""); got.status(t).Message != want {
		t.Errorf("got %s, want %s", got.body, want)
	}
}
