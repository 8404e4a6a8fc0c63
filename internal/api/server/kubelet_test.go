package server_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
)

// apiServer answers reviews as its maps say, and counts them.
type apiServer struct {
	mu      sync.Mutex
	down    bool
	users   map[string]authenticationv1.UserInfo // by token
	allowed map[string]bool                      // "user verb subresource"
	tokens  int
	hang    bool // until the question is given up
	asked   []string
}

// set changes what it does while it is asked.
func (a *apiServer) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

func (a *apiServer) CreateTokenReview(ctx context.Context, t *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
	a.mu.Lock()
	a.tokens++
	hang := a.hang
	a.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return nil, errors.New("connection refused")
	}
	u, ok := a.users[t.Spec.Token]
	t.Status = authenticationv1.TokenReviewStatus{Authenticated: ok, User: u}
	return t, nil
}

func (a *apiServer) CreateSubjectAccessReview(_ context.Context, s *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ra := s.Spec.ResourceAttributes
	if ra.Resource != "nodes" || ra.Name != "node-1" || ra.Group != "" || ra.Namespace != "" {
		return nil, fmt.Errorf("asked about %+v", ra)
	}
	what := fmt.Sprintf("%s %s %s", s.Spec.User, ra.Verb, ra.Subresource)
	a.asked = append(a.asked, what)
	if a.down {
		return nil, errors.New("connection refused")
	}
	s.Status.Allowed = a.allowed[what]
	return s, nil
}

// takeAsked returns what was asked since the last call.
func (a *apiServer) takeAsked() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	asked := a.asked
	a.asked = nil
	return asked
}

// newCertificate returns a certificate for a client or a server that nobody signed.
func newCertificate(t *testing.T, subject pkix.Name) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: subject, NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"node"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// kubelet is a running server with all doors.
type kubelet struct {
	t                         *testing.T
	secure, readOnly, healthz *pipeListener
	serving                   *tls.Certificate
	settings                  []server.Setting
}

// serveKubelet runs a server until the test ends; doors that k does not open are opened on pipes.
func serveKubelet(t *testing.T, h server.Handlers, k server.Kubelet) *kubelet {
	t.Helper()
	return serveKubeletWith(t, server.Config{Handlers: h}, k)
}

// serveKubeletWith is serveKubelet for a server that needs more than handlers.
func serveKubeletWith(t *testing.T, cfg server.Config, k server.Kubelet) *kubelet {
	t.Helper()
	h := &cfg.Handlers
	kl := &kubelet{t: t, secure: newPipeListener(), readOnly: newPipeListener(), healthz: newPipeListener(), serving: newCertificate(t, pkix.Name{CommonName: "node"})}
	kl.settings = []server.Setting{{Path: "maxPods", Value: 110, From: "default"}, {Path: "--cert-dir", Value: "/c", From: "--cert-dir"}}
	on := func(l *pipeListener) func() (net.Listener, error) {
		return func() (net.Listener, error) { return l, nil }
	}
	k.NodeName = "node-1"
	k.ListenSecure, k.ListenReadOnly, k.ListenHealthz = on(kl.secure), on(kl.readOnly), on(kl.healthz)
	k.Certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return kl.serving, nil }
	if k.Authorization.Mode == "" {
		k.Authorization.Mode = server.AlwaysAllow
	}
	h.Observed.List = func() []*pod.Status { return observedPods }
	h.Configuration.Configz = func() any { return map[string]int{"maxPods": 110} }
	h.Configuration.Settings = func() ([]server.Setting, error) {
		return kl.settings, nil
	}
	cfg.Listen, cfg.Kubelet = on(newPipeListener()), &k
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s, err := server.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		time.Sleep(10 * time.Second) // each end says farewell over TLS, which nobody reads from a pipe, and gives up after five seconds
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return kl
}

var observedPods = []*pod.Status{
	{UID: "2", Namespace: "default", Name: "web", Containers: []pod.ContainerStatus{
		{Name: "main", Image: "hello:1", State: pod.StateRunning},
		{Name: "main", Image: "hello:1", State: pod.StateExited},
	}},
	{UID: "3", Namespace: "default", Name: "ended", Containers: []pod.ContainerStatus{{Name: "main", State: pod.StateExited}}},
}

// credential is what a client shows of itself, and where it comes from.
type credential struct {
	token string
	cert  *tls.Certificate
	from  string // remote address and port; "": the pipe's own

	accept, agent string // headers Accept and User-Agent; "": none, and Go's
}

// ask sends one request over one connection.
func (k *kubelet) ask(l *pipeListener, method, path string, c credential) answer {
	k.t.Helper()
	got, _ := k.askWith(l, method, path, c)
	messagestest.Saw("http", strconv.Itoa(got.Status), got.Body)
	return got
}

// askWith is ask, and returns the headers of the answer too.
func (k *kubelet) askWith(l *pipeListener, method, path string, c credential) (answer, http.Header) {
	k.t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(k.serving.Leaf)
	cfg := &tls.Config{RootCAs: roots, ServerName: "node"}
	if c.cert != nil {
		cfg.Certificates = []tls.Certificate{*c.cert}
	}
	transport := &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return l.dialFrom(ctx, c.from) },
		TLSClientConfig:   cfg,
		DisableKeepAlives: true,
	}
	defer transport.CloseIdleConnections()
	scheme := "http"
	if l == k.secure {
		scheme = "https"
	}
	req, err := http.NewRequestWithContext(k.t.Context(), method, scheme+"://node"+path, nil)
	if err != nil {
		k.t.Fatal(err)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.accept != "" {
		req.Header.Set("Accept", c.accept)
	}
	if c.agent != "" {
		req.Header.Set("User-Agent", c.agent)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		k.t.Fatalf("%s %s: %v", method, path, err)
	}
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		k.t.Fatal(err)
	}
	return answer{resp.StatusCode, string(text)}, resp.Header
}

func TestNewKubeletNeedsEverything(t *testing.T) {
	h := newNode().handlers()
	h.Observed.List = func() []*pod.Status { return nil }
	h.Configuration.Configz = func() any { return nil }
	listen := func() (net.Listener, error) { return newPipeListener(), nil }
	certificate := func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, nil }
	for _, c := range []struct {
		k    server.Kubelet
		want string
	}{
		{server.Kubelet{ListenSecure: listen}, "serving certificate"},
		{server.Kubelet{ListenSecure: listen, Certificate: certificate}, `authorization.mode ""`},
		{server.Kubelet{ListenSecure: listen, Certificate: certificate, Authorization: server.Authorization{Mode: server.Webhook}}, "no API server to ask"},
		{server.Kubelet{ListenSecure: listen, Certificate: certificate, Authorization: server.Authorization{Mode: server.Webhook, Reviewer: &apiServer{}}}, "name of the node"},
		{server.Kubelet{ListenReadOnly: listen}, ""},
	} {
		_, err := server.New(server.Config{Handlers: h, Listen: listen, Kubelet: &c.k, Log: slog.New(slog.DiscardHandler)})
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

func TestAuthentication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alice := newCertificate(t, pkix.Name{CommonName: "alice", Organization: []string{"dev"}})
		nameless := newCertificate(t, pkix.Name{Organization: []string{"dev"}})
		mallory := newCertificate(t, pkix.Name{CommonName: "mallory"})
		verify := func(chain []*x509.Certificate) error {
			if chain[0].Subject.CommonName == "mallory" {
				return errors.New("unknown authority")
			}
			return nil
		}
		ok := answer{200, "ok"}
		unauthorized := answer{401, "Unauthorized"}
		forbidden := func(user string) answer {
			return answer{403, "Forbidden (user=" + user + ", verb=get, resource=nodes, subresource(s)=[healthz proxy])"}
		}
		reviewer := &apiServer{
			users: map[string]authenticationv1.UserInfo{"good": {Username: "bob"}},
			allowed: map[string]bool{
				"alice get healthz": true, "bob get proxy": true,
			},
		}
		all := server.Authentication{VerifyClient: verify, Tokens: reviewer}
		anonymous := all
		anonymous.Anonymous = true
		for _, c := range []struct {
			name string
			a    server.Authentication
			with credential
			want answer
		}{
			{"nothing", all, credential{}, unauthorized},
			{"certificate", all, credential{cert: alice}, ok},
			{"certificate of nobody", all, credential{cert: nameless}, unauthorized},
			{"certificate that is not good", all, credential{cert: mallory}, unauthorized},
			{"certificate that is not good, and a token", all, credential{cert: mallory, token: "good"}, ok},
			{"certificate without CA", server.Authentication{}, credential{cert: alice}, unauthorized},
			{"token", all, credential{token: "good"}, ok},
			{"bad token", all, credential{token: "bad"}, unauthorized},
			{"token that nobody asks about", server.Authentication{}, credential{token: "good"}, unauthorized},
			{"anonymous", anonymous, credential{}, forbidden("system:anonymous")},
			{"anonymous with a bad token", anonymous, credential{token: "bad"}, unauthorized},
			{"anonymous with a bad certificate", anonymous, credential{cert: mallory}, unauthorized},
		} {
			k := serveKubelet(t, newNode().handlers(), server.Kubelet{Authentication: c.a, Authorization: server.Authorization{Mode: server.Webhook, Reviewer: reviewer}})
			if got := k.ask(k.secure, "GET", "/healthz", c.with); got != c.want {
				t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
			}
		}
	})
}

func TestAuthorizationsAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reviewer := &apiServer{allowed: map[string]bool{"system:anonymous get proxy": true}}
		k := serveKubelet(t, newNode().handlers(), server.Kubelet{
			Authentication: server.Authentication{Anonymous: true},
			Authorization:  server.Authorization{Mode: server.Webhook, Reviewer: reviewer},
		})
		ask := func(want int, asked ...string) {
			t.Helper()
			if got := k.ask(k.secure, "GET", "/healthz", credential{}); got.Status != want {
				t.Errorf("got %+v, want %d", got, want)
			}
			if got := reviewer.takeAsked(); !slices.Equal(got, asked) {
				t.Errorf("asked %q, want %q", got, asked)
			}
		}
		const fine, proxy = "system:anonymous get healthz", "system:anonymous get proxy"
		ask(200, fine, proxy)
		ask(200)
		time.Sleep(31 * time.Second) // the refusal is forgotten, the permission is not
		ask(200, fine)
		reviewer.allowed = nil
		time.Sleep(31 * time.Second)
		ask(200, fine)
		time.Sleep(5 * time.Minute)
		ask(403, fine, proxy)
		ask(403)
		reviewer.down = true
		time.Sleep(31 * time.Second)
		ask(500, fine, proxy)
		want := answer{500, "Authorization error (user=system:anonymous, verb=get, resource=nodes, subresource(s)=[healthz proxy])"}
		if got := k.ask(k.secure, "GET", "/healthz", credential{}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		reviewer.takeAsked()
		reviewer.down, reviewer.allowed = false, map[string]bool{fine: true}
		ask(200, fine)
	})
}

func TestWhatIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reviewer := &apiServer{}
		k := serveKubelet(t, newNode().handlers(), server.Kubelet{
			Authentication: server.Authentication{Anonymous: true},
			Authorization:  server.Authorization{Mode: server.Webhook, Reviewer: reviewer, DenyTTL: time.Nanosecond},
		})
		for _, c := range []struct {
			method, path string
			want         []string
		}{
			{"GET", "/pods", []string{"get pods", "get proxy"}},
			{"GET", "/runningpods/", []string{"get pods", "get proxy"}},
			{"GET", "/healthz/ping", []string{"get healthz", "get proxy"}},
			{"GET", "/configz", []string{"get configz", "get proxy"}},
			{"GET", "/statusz", []string{"get statusz"}},
			{"GET", "/flagz", []string{"get configz", "get proxy"}},
			{"POST", "/stats/summary", []string{"create stats"}},
			{"GET", "/metrics/cadvisor", []string{"get metrics"}},
			{"GET", "/logs/syslog", []string{"get log"}},
			{"POST", "/checkpoint/default/web/main", []string{"create checkpoint"}},
			{"GET", "/containerLogs/default/web/main", []string{"get proxy"}},
			{"GET", "/exec/default/web/main", []string{"create proxy"}},
			{"POST", "/exec/default/web/main", []string{"create proxy"}},
			{"GET", "/attach/default/web/main", []string{"create proxy"}},
			{"GET", "/portForward/default/web", []string{"create proxy"}},
			{"GET", "/run/default/web/main", []string{"create proxy"}},
			{"PUT", "/nothing", []string{"update proxy"}},
			{"PATCH", "/nothing", []string{"patch proxy"}},
			{"DELETE", "/nothing", []string{"delete proxy"}},
			{"OPTIONS", "/nothing", []string{" proxy"}},
			{"GET", "/pods/../exec/default/web/main", []string{"get pods", "get proxy"}}, // answered with 404 if allowed
			{"GET", "/podsy", []string{"get proxy"}},
		} {
			time.Sleep(time.Second)
			var want []string
			for _, w := range c.want {
				want = append(want, "system:anonymous "+w)
			}
			if got := k.ask(k.secure, c.method, c.path, credential{}); got.Status != 403 {
				t.Errorf("%s %s: got %+v", c.method, c.path, got)
			}
			if diff := cmp.Diff(want, reviewer.takeAsked()); diff != "" {
				t.Errorf("%s %s (-want +got):\n%s", c.method, c.path, diff)
			}
		}
	})
}

func TestDoors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(aPod("web", "2", v1.PodRunning))
		open := serveKubelet(t, n.handlers(), server.Kubelet{Authentication: server.Authentication{Anonymous: true}})
		closed := serveKubelet(t, n.handlers(), server.Kubelet{Authentication: server.Authentication{Anonymous: true}, DisableDebugging: true})
		disabled := answer{405, "Debug endpoints are disabled.\n"}
		notFound := answer{404, "404 page not found\n"}
		running := answer{200, `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":"web","namespace":"default","uid":"2"},` +
			`"spec":{"containers":[{"name":"main","image":"hello:1","resources":{}}]},"status":{}}]}` + "\n"}
		for _, c := range []struct {
			k            *kubelet
			door         *pipeListener
			method, path string
			want         answer
		}{
			{open, open.secure, "GET", "/healthz", answer{200, "ok"}},
			{open, open.secure, "GET", "/healthz?verbose", answer{200, "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n"}},
			{open, open.secure, "GET", "/healthz/syncloop", answer{200, "ok"}},
			{open, open.secure, "GET", "/healthz/nothing", notFound},
			{open, open.secure, "GET", "/configz", answer{200, `{"kubeletconfig":{"maxPods":110}}` + "\n"}},
			{open, open.readOnly, "GET", "/flagz", notFound},
			{open, open.readOnly, "GET", "/statusz", notFound},
			{open, open.secure, "GET", "/runningpods/", running},
			{open, open.secure, "GET", "/metrics", notFound},
			{open, open.secure, "GET", "/containerLogs/default/nobody/main", answer{404, "pod \"nobody\" not found in namespace \"default\"\n"}},
			{open, open.secure, "GET", "/berth/v1/version", notFound},
			{open, open.secure, "POST", "/berth/v1/stop", notFound},
			{open, open.secure, "POST", "/pods", answer{405, "Method Not Allowed\n"}},
			{closed, closed.secure, "GET", "/healthz", answer{200, "ok"}},
			{closed, closed.secure, "GET", "/configz", answer{200, `{"kubeletconfig":{"maxPods":110}}` + "\n"}},
			{closed, closed.secure, "POST", "/exec/default/web/main", disabled},
			{closed, closed.secure, "GET", "/attach/default/web/main", disabled},
			{closed, closed.secure, "POST", "/run/default/web/main", disabled},
			{closed, closed.secure, "POST", "/portForward/default/web", disabled},
			{closed, closed.secure, "GET", "/containerLogs/default/web/main", disabled},
			{closed, closed.secure, "GET", "/runningpods/", disabled},
			{closed, closed.secure, "GET", "/debug/pprof/heap", disabled},
			{closed, closed.secure, "GET", "/logs/", disabled},
			{open, open.readOnly, "GET", "/healthz/ping", answer{200, "ok"}},
			{open, open.readOnly, "GET", "/configz", notFound},
			{open, open.readOnly, "POST", "/exec/default/web/main", disabled},
			{open, open.readOnly, "GET", "/containerLogs/default/web/main", disabled},
			{open, open.healthz, "GET", "/healthz", answer{200, "ok"}},
			{open, open.healthz, "GET", "/pods", notFound},
		} {
			if got := c.k.ask(c.door, c.method, c.path, credential{}); got != c.want {
				t.Errorf("%s %s: got %+v, want %+v", c.method, c.path, got, c.want)
			}
		}
		for _, door := range []*pipeListener{open.secure, open.readOnly} {
			var list v1.PodList
			decode(t, open.ask(door, "GET", "/pods?watch=true", credential{}), &list) // as the kubelet, which knows no watch
			if len(list.Items) != 1 || list.Items[0].Name != "web" {
				t.Errorf("pods: got %+v", list.Items)
			}
		}

		n.unwell = errors.New("the runtime does not answer")
		h := n.handlers()
		h.Health.DevicePlugins = func() error { return errors.New("the socket is not served") }
		unwell := serveKubelet(t, h, server.Kubelet{Authentication: server.Authentication{Anonymous: true}})
		for _, c := range []struct {
			door *pipeListener
			path string
			want answer
		}{
			{unwell.secure, "/healthz", answer{500, "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\n[-]device-plugin failed: reason withheld\nhealthz check failed\n"}},
			{unwell.readOnly, "/healthz/device-plugin", answer{500, "internal server error: the socket is not served\n"}},
			{unwell.secure, "/healthz/syncloop", answer{500, "internal server error: the runtime does not answer\n"}},
			{unwell.secure, "/healthz/ping", answer{200, "ok"}},
			{unwell.healthz, "/healthz", answer{200, "ok"}},
		} {
			if got := unwell.ask(c.door, "GET", c.path, credential{}); got != c.want {
				t.Errorf("unwell, %s: got %+v, want %+v", c.path, got, c.want)
			}
		}
	})
}

func TestServingCertificateIsAskedForWithEachHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := serveKubelet(t, newNode().handlers(), server.Kubelet{Authentication: server.Authentication{Anonymous: true}})
		for range 2 { // the client trusts the newest certificate alone
			if got := k.ask(k.secure, "GET", "/healthz", credential{}); got.Status != 200 {
				t.Errorf("got %+v", got)
			}
			k.serving = newCertificate(t, pkix.Name{CommonName: "node"})
		}
	})
}

func TestRunEndsWhenADoorCannotBeOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newNode().handlers()
		h.Observed.List = func() []*pod.Status { return nil }
		h.Configuration.Configz = func() any { return nil }
		taken := errors.New("address already in use")
		s, err := server.New(server.Config{
			Handlers: h,
			Listen:   func() (net.Listener, error) { return newPipeListener(), nil },
			Kubelet:  &server.Kubelet{ListenHealthz: func() (net.Listener, error) { return nil, taken }},
			Log:      slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Run(t.Context()); !errors.Is(err, taken) || !strings.Contains(err.Error(), "healthz") {
			t.Errorf("got %v", err)
		}
	})
}
