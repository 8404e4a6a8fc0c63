package auth_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/localapi/auth"
)

// ticks answers a request with a line at once, and one more to each request at each tick, until it
// is ended.
type ticks struct {
	mu   sync.Mutex
	n    int           // guarded by mu
	more chan struct{} // guarded by mu; closed by the next tick
}

func newTicks() *ticks { return &ticks{n: 1, more: make(chan struct{})} }

func (h *ticks) tick() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n++
	close(h.more)
	h.more = make(chan struct{})
}

func (h *ticks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := http.NewResponseController(w)
	for told := 0; ; told++ {
		h.mu.Lock()
		n, more := h.n, h.more
		h.mu.Unlock()
		if told == 0 {
			told = n - 1
		}
		if told == n {
			select {
			case <-more:
			case <-r.Context().Done():
				return
			}
		}
		if _, err := fmt.Fprintln(w, auth.UserOf(r.Context()).Name); err != nil {
			return
		}
		_ = c.Flush()
	}
}

// stream is an answer that goes on.
type stream struct {
	*testing.T
	*bufio.Reader
}

// open begins a request that goes on.
func (s *server) open(c *http.Client, path string, headers ...string) stream {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+path, http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	response, err := c.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = response.Body.Close() })
	st := stream{s.t, bufio.NewReader(response.Body)}
	if response.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %d", path, response.StatusCode)
	}
	st.line()
	return st
}

// line is the next one.
func (s stream) line() string {
	s.Helper()
	line, err := s.ReadString('\n')
	if err != nil {
		s.Fatalf("a stream broke off: %v", err)
	}
	return strings.TrimSpace(line)
}

// ends waits for the end, which must be one that a client takes for that.
func (s stream) ends() {
	s.Helper()
	if rest, err := io.ReadAll(s); err != nil || len(rest) > 0 {
		s.Errorf("a stream ends with %q and %v", rest, err)
	}
}

// runDoor has the door end requests, as the API does.
func (s *server) runDoor() {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.t.Context())
	ended := make(chan error)
	go func() { ended <- s.door.Run(ctx) }()
	s.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
	})
}

const runningRules = `rules:
- {users: [ci, shell], verbs: [list, watch, get, create], resources: [pods, pods/log, pods/exec], namespaces: [x]}
- {users: [keeper], verbs: [watch], resources: [pods], namespaces: [x]}
- {users: [boss], verbs: [impersonate], resources: [users], resourceNames: [ci]}
`

// TestRightsAreTakenAway changes the file of rules while requests run.
func TestRightsAreTakenAway(t *testing.T) {
	h := newTicks()
	s := newServerOf(t, runningRules, auth.Config{}, h)
	s.runDoor()
	ci, keeper, boss := s.client("ci"), s.client("keeper"), s.client("boss")
	const watch = "/api/v1/namespaces/x/pods?watch=1"
	kept := s.open(keeper, watch)
	watching, following := s.open(ci, watch), s.open(ci, "/api/v1/namespaces/x/pods/p/log?follow=1")
	acting := s.open(boss, watch, "Impersonate-User: ci")

	// Another rule takes nothing away, nor does a file that is broken.
	s.setRules(runningRules + "- {users: [other], verbs: [get], resources: [nodes]}\n")
	s.setRules("rules: nonsense")
	h.tick()
	for _, st := range []stream{kept, watching, following, acting} {
		st.line()
	}

	s.setRules(strings.Replace(runningRules, "pods/log, ", "", 1))
	following.ends()
	s.setRules(strings.Replace(runningRules, "resourceNames: [ci]", "resourceNames: [nobody]", 1))
	acting.ends()
	s.setRules(strings.Replace(runningRules, "ci, ", "", 1))
	watching.ends()
	if got := s.do(ci, "GET "+watch, ""); got.code != http.StatusForbidden {
		t.Errorf("who comes again is answered %d", got.code)
	}
	h.tick()
	if line := kept.line(); line != "keeper" {
		t.Errorf("who kept its right is told %q", line)
	}
	if n := strings.Count(s.log.String(), "as its client may no longer"); n != 3 {
		t.Errorf("%d ends are logged, want 3:\n%s", n, s.log)
	}
}

// TestRightToAShellIsTakenAway ends a connection that was taken over by a handler that notices
// nothing.
func TestRightToAShellIsTakenAway(t *testing.T) {
	inMemory(t, func(l net.Listener) net.Listener { return l }, func(d *door) {
		d.setRules(runningRules)
		conn := tls.Client(d.must(d.dial(d.Context(), "", "")), d.secured("shell", nil))
		if _, err := fmt.Fprintf(conn, "POST /api/v1/namespaces/x/pods/p/exec HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(conn)
		if answer, err := http.ReadResponse(r, nil); err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%v, %v", answer, err)
		}
		d.setRules("rules: []\n")
		d.access.Overlooked()
		start := time.Now()
		if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 || time.Since(start) != 5*time.Second {
			t.Errorf("the shell ends after %v with %q and %v", time.Since(start), rest, err)
		}
	})
}

const accountRules = `rules:
- {users: ["system:serviceaccount:x:robot"], verbs: [watch], resources: [pods], namespaces: [x]}
`

// TestTokensEndRequests takes away what a token is bound to, while a request of it runs.
func TestTokensEndRequests(t *testing.T) {
	for name, c := range map[string]struct {
		bound          *authenticationv1.BoundObjectReference
		plural, object string
		change         func(*objects)
	}{
		"the pod goes":     {boundTo("Pod", "web"), "pods", "web", func(o *objects) { o.remove("pods/x/web") }},
		"the secret goes":  {boundTo("Secret", "key"), "secrets", "key", func(o *objects) { o.remove("secrets/x/key") }},
		"the account goes": {nil, "serviceaccounts", "robot", func(o *objects) { o.remove("serviceaccounts/x/robot") }},
		"another account of the name": {nil, "serviceaccounts", "robot", func(o *objects) {
			a := &v1.ServiceAccount{ObjectMeta: meta("x", "robot")}
			a.UID = "another"
			o.put("serviceaccounts", a)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTicks()
			s := newServerOf(t, accountRules, auth.Config{}, h)
			s.putAccount()
			token := s.token("x", "robot", authenticationv1.TokenRequestSpec{BoundObjectRef: c.bound})
			st := s.open(s.stranger(), "/api/v1/namespaces/x/pods?watch=1", "Authorization: Bearer "+token)
			s.door.Changed(c.plural, "x", c.object)
			h.tick()
			st.line() // it was changed, and is there
			c.change(s.objects)
			s.door.Changed(c.plural, "x", c.object)
			st.ends()
		})
	}
}

// TestTimeEndsRequests lets the time of a certificate, of a token and of an object that is being
// deleted go by.
func TestTimeEndsRequests(t *testing.T) {
	const follow = "/api/v1/namespaces/x/pods/p/log?follow=1"
	inMemory(t, func(l net.Listener) net.Listener { return l }, func(d *door) {
		start := time.Now()
		code, end := d.get(d.client("ann", d.dial), follow)
		end()
		if took := time.Since(start); code != http.StatusOK || took < time.Hour || took > time.Hour+time.Second {
			t.Errorf("by a certificate for an hour a request is answered %d and goes on for %v", code, took)
		}
	})
	soon := func() *metav1.Time { return &metav1.Time{Time: time.Now().Add(30 * time.Second)} }
	for name, c := range map[string]struct {
		change func(*door)
		want   time.Duration
	}{
		// A minute is what clocks may differ by.
		"a token for ten minutes": {func(*door) {}, 11 * time.Minute},
		"its pod is being deleted": {func(d *door) {
			p := &v1.Pod{ObjectMeta: meta("x", "web")}
			p.DeletionTimestamp = soon()
			d.objects.put("pods", p)
			d.access.Changed("pods", "x", "web")
		}, 90 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(l net.Listener) net.Listener { return l }, func(d *door) {
				d.objects.put("serviceaccounts", &v1.ServiceAccount{ObjectMeta: meta("x", "robot")})
				d.objects.put("pods", &v1.Pod{ObjectMeta: meta("x", "web"), Spec: v1.PodSpec{ServiceAccountName: "robot"}})
				d.setRules(`{rules: [{users: ["system:serviceaccount:x:robot"], verbs: [get], resources: [pods/log]}]}`)
				r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(600), BoundObjectRef: boundTo("Pod", "web")}}
				if err := d.tokens.Request(d.Context(), "x", "robot", r); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				client := d.bearer(r.Status.Token)
				code, end := d.get(client, follow)
				synctest.Wait()
				c.change(d)
				end()
				if took := time.Since(start); code != http.StatusOK || took < c.want-time.Second || took > c.want+time.Second {
					t.Errorf("a request is answered %d and goes on for %v, want %v", code, took, c.want)
				}
				time.Sleep(time.Minute) // of virtual time
				code, end = d.get(client, "/version")
				end()
				if code != http.StatusUnauthorized || d.dialed != 1 {
					t.Errorf("by the same connection, the next request is answered %d; there were %d", code, d.dialed)
				}
			})
		})
	}
}
