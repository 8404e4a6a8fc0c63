package auth_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth/internal/localapi/auth"
	"berth/internal/localapi/kinds"
)

// objects are some objects in memory.
type objects struct {
	mu  sync.Mutex
	all map[string]kinds.Object // guarded by mu; by resource, namespace and name
	err error                   // guarded by mu
}

func (o *objects) Get(_ context.Context, k *kinds.Kind, namespace, name string) (kinds.Object, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return nil, o.err
	}
	if found, ok := o.all[k.Plural+"/"+namespace+"/"+name]; ok {
		return found, nil
	}
	return nil, apierrors.NewNotFound(k.Resource(), name)
}

func (o *objects) put(plural string, made kinds.Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[string]kinds.Object{}
	}
	o.all[plural+"/"+made.GetNamespace()+"/"+made.GetName()] = made
}

func (o *objects) remove(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, key)
}

func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-of-" + name)}
}

// log is what was logged, as JSON lines.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// server is the door of an API over TLS on loopback, and over a unix socket. Behind it everything
// is answered with what was asked, and for whom.
type server struct {
	t         *testing.T
	dir       string
	url       string
	socket    string
	objects   *objects
	authority *auth.Authority
	tokens    *auth.Tokens
	door      *auth.Access
	log       *log
}

// reached is the answer of what is behind the door.
type reached struct {
	User    string
	Groups  []string
	By      string
	Headers http.Header
	Body    int
}

func newServer(t *testing.T, rules string) *server {
	return newServerOf(t, rules, auth.Config{}, nil)
}

func newServerOf(t *testing.T, rules string, cfg auth.Config, behind http.Handler) *server {
	t.Helper()
	s := &server{t: t, dir: t.TempDir(), objects: &objects{}, log: &log{}}
	s.setRules(rules)
	var err error
	if s.authority, err = auth.OpenAuthority(filepath.Join(s.dir, "api")); err != nil {
		t.Fatal(err)
	}
	if s.tokens, err = auth.OpenTokens(auth.TokensConfig{Dir: filepath.Join(s.dir, "api"), Objects: s.objects}); err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.NewJSONHandler(s.log, nil))
	cfg.Authority, cfg.Tokens, cfg.Objects, cfg.Log = s.authority, s.tokens, s.objects, logger
	cfg.Rules = auth.NewRulesFile(s.rulesPath(), logger)
	s.door = auth.New(cfg)
	if behind == nil {
		behind = http.HandlerFunc(tellReached)
	}
	hs := &http.Server{Handler: s.door.Handler(behind), ConnContext: auth.ConnContext, TLSConfig: s.authority.TLS(), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	auth.Bound(hs)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.socket = filepath.Join(s.dir, "s")
	local, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = hs.ServeTLS(tcp, "", "") })
	wg.Go(func() { _ = hs.Serve(local) })
	t.Cleanup(func() {
		if err := hs.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
	s.url = "https://" + tcp.Addr().String()
	return s
}

func tellReached(w http.ResponseWriter, r *http.Request) {
	u := auth.UserOf(r.Context())
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	told := reached{User: u.Name, Groups: u.Groups, Headers: r.Header, Body: len(body)}
	if u.By != nil {
		told.By = u.By.Name
	}
	_ = json.NewEncoder(w).Encode(told)
}

func (s *server) rulesPath() string { return filepath.Join(s.dir, "access.yaml") }

func (s *server) setRules(rules string) {
	s.t.Helper()
	written := s.rulesPath() + ".new" // half a file has no rules, or others
	if err := errors.Join(os.WriteFile(written, []byte(rules), 0o600), os.Rename(written, s.rulesPath())); err != nil {
		s.t.Fatal(err)
	}
}

// client is one with a certificate of a user, from a kubeconfig.
func (s *server) client(user string, groups ...string) *http.Client {
	s.t.Helper()
	content, err := auth.Kubeconfig(s.authority, s.rulesPath(), auth.Grant{
		Rule: auth.Rule{Users: []string{user}, Groups: groups}, Life: time.Hour, Server: s.url,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return clientOf(s.t, content)
}

func clientOf(t *testing.T, kubeconfig []byte) *http.Client {
	t.Helper()
	cfg, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	c, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// stranger trusts the server and shows what it is given.
func (s *server) stranger(shown ...tls.Certificate) *http.Client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.authority.Certificate())
	t := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if len(shown) == 0 {
			return &tls.Certificate{}, nil
		}
		return &shown[0], nil
	}}}
	s.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// answer is what a request was answered with.
type answer struct {
	code   int
	header http.Header
	body   string
}

func (a answer) status(t *testing.T) metav1.Status {
	t.Helper()
	var s metav1.Status
	if err := json.Unmarshal([]byte(a.body), &s); err != nil {
		t.Fatalf("%d %s: %v", a.code, a.body, err)
	}
	return s
}

// do sends a request: "GET /path", with headers as "Name: value".
func (s *server) do(c *http.Client, request, body string, headers ...string) answer {
	s.t.Helper()
	method, path, _ := strings.Cut(request, " ")
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header[name] = append(r.Header[name], value) // as it is spelled
	}
	resp, err := c.Do(r)
	if err != nil {
		s.t.Fatalf("%s: %v", request, err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatalf("%s: %v", request, err)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

func (s *server) putAccount() {
	s.objects.put("serviceaccounts", &v1.ServiceAccount{ObjectMeta: meta("x", "robot")})
	s.objects.put("pods", &v1.Pod{ObjectMeta: meta("x", "web"), Spec: v1.PodSpec{ServiceAccountName: "robot", NodeName: "here"}})
	s.objects.put("nodes", &v1.Node{ObjectMeta: meta("", "here")})
	s.objects.put("secrets", &v1.Secret{ObjectMeta: meta("x", "key")})
}
