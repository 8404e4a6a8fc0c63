package auth_test

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/localapi/auth"
)

// lines are the audit lines, without what differs each time. A line comes after its answer: they
// are waited for.
func (s *server) lines(n int) []map[string]any {
	s.t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		var found []map[string]any
		for line := range strings.Lines(s.log.String()) {
			var m map[string]any
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				s.t.Fatalf("%q: %v", line, err)
			}
			if m["msg"] != "request of the local API" {
				continue
			}
			for _, key := range []string{"time", "duration", "from"} {
				if m[key] == nil {
					s.t.Errorf("%s lacks %s", line, key)
				}
				delete(m, key)
			}
			delete(m, "msg")
			delete(m, "level")
			found = append(found, m)
		}
		if len(found) >= n {
			return found
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			s.t.Fatalf("%d lines after a while, want %d:\n%s", len(found), n, s.log)
		}
	}
}

func TestAudit(t *testing.T) {
	s := newServer(t, rules)
	s.putAccount()
	s.objects.put("configmaps", configMap("x", "there"))
	for _, c := range []struct {
		user, request string
		headers       []string
		want          map[string]any // nil: no line
	}{
		{user: "ci", request: "GET /api/v1/namespaces/x/pods"},
		{user: "ci", request: "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"},
		{user: "deployer", request: "PUT /api/v1/namespaces/x/configmaps/there", want: map[string]any{"user": "deployer", "verb": "update", "resource": "configmaps", "namespace": "x", "name": "there", "code": 200.}},
		{user: "deployer", request: "POST /api/v1/namespaces/x/pods", want: map[string]any{"user": "deployer", "verb": "create", "resource": "pods", "namespace": "x", "code": 200.}},
		{user: "ci", request: "GET /api/v1/nodes/n", want: map[string]any{"user": "ci", "verb": "get", "resource": "nodes", "name": "n", "code": 403.}},
		{user: "ci", request: "GET /api/v1/nodes/n/proxy/metrics", want: map[string]any{"user": "ci", "verb": "get", "resource": "nodes/proxy", "name": "n", "code": 403.}},
		{user: "ci", request: "GET /metrics", want: map[string]any{"user": "ci", "verb": "get", "path": "/metrics", "code": 403.}},
		{
			user: "boss", request: "DELETE /apis/coordination.k8s.io/v1/namespaces/x/leases/l", headers: []string{"Impersonate-User: a", "Impersonate-Group: system:masters"},
			want: map[string]any{"user": "a", "impersonatedBy": "boss", "verb": "delete", "resource": "leases.coordination.k8s.io", "namespace": "x", "name": "l", "code": 200.},
		},
		{user: "shell", request: "GET /api/v1/namespaces/x/pods/p/exec", want: map[string]any{"user": "shell", "verb": "get", "resource": "pods/exec", "namespace": "x", "name": "p", "code": 200.}},
		{user: "reviewer", request: "POST /api/v1/namespaces/x/serviceaccounts/robot/token", want: map[string]any{"user": "reviewer", "verb": "create", "resource": "serviceaccounts/token", "namespace": "x", "name": "robot", "code": 201.}},
		{user: "", request: "GET /api/v1/pods", want: map[string]any{"verb": "list", "resource": "pods", "code": 401.}},
		{user: "ci", request: "GET /" + strings.Repeat("x", 1000), want: map[string]any{"user": "ci", "verb": "get", "path": "/" + strings.Repeat("x", 252) + "…", "code": 403.}},
	} {
		s.log.mu.Lock()
		s.log.buf.Reset()
		s.log.mu.Unlock()
		client := s.stranger()
		if c.user != "" {
			client = s.client(c.user)
		}
		body := `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","metadata":{"name":"robot"}}`
		s.do(client, c.request, body, c.headers...)
		if c.want == nil {
			s.do(s.stranger(), "GET /", "") // its line comes after one of the request, if there is one
			if got := s.lines(1); got[0]["code"] != 401. {
				t.Errorf("%s: logged as %v", c.request, got[0])
			}
			continue
		}
		c.want["code"] = c.want["code"].(float64)
		if diff := cmp.Diff([]map[string]any{c.want}, s.lines(1)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.request, diff)
		}
		if log := s.log.String(); strings.Contains(log, "TokenRequest") || strings.Contains(log, "eyJ") {
			t.Errorf("%s: a body or a token is in the log: %s", c.request, log)
		}
	}
}

// TestRefusedWithoutEnd has a stranger fill no log.
func TestRefusedWithoutEnd(t *testing.T) {
	s := newServer(t, rules)
	begin := time.Now()
	c := s.stranger()
	for range 500 {
		s.do(c, "GET /api/v1/pods", "")
	}
	most := 10 * (2 + int(time.Since(begin)/time.Second))
	if n := len(s.lines(10)); n > most || n == 500 {
		t.Errorf("%d lines of 500 requests in %v", n, time.Since(begin))
	}
}

// TestLimits has one user hold as many requests as it may. Others do not notice.
func TestLimits(t *testing.T) {
	enter, leave := make(chan struct{}), make(chan struct{})
	s := newServerOf(t, rules, auth.Config{MaxRequests: 2, MaxWatches: 3}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if auth.UserOf(r.Context()).Name == "deployer" {
			w.WriteHeader(http.StatusOK)
			return
		}
		enter <- struct{}{}
		<-leave
	}))
	ci, boss := s.client("ci"), s.client("boss")
	done := make(chan int)
	start := func(c *http.Client, request string, headers ...string) {
		go func() { done <- s.do(c, request, "", headers...).code }()
		<-enter
	}
	const list, watch = "GET /api/v1/namespaces/x/pods", "GET /api/v1/namespaces/x/pods?watch=1"
	for range 2 {
		start(ci, list)
	}
	for range 2 {
		start(ci, watch)
	}
	start(ci, "GET /api/v1/namespaces/x/pods/p/log?follow=true")
	for _, request := range []string{list, watch, "GET /version", "GET /api/v1/namespaces/x/pods/p/log?follow=1"} {
		got := s.do(ci, request, "")
		if st := got.status(t); got.code != http.StatusTooManyRequests || got.header.Get("Retry-After") != "1" || st.Reason != "TooManyRequests" || st.Details.RetryAfterSeconds != 1 {
			t.Errorf("%s: %d %v %s", request, got.code, got.header, got.body)
		}
	}
	// Who acts for many is one.
	start(boss, list, "Impersonate-User: u1", "Impersonate-Group: readers")
	start(boss, list, "Impersonate-User: u2", "Impersonate-Group: readers")
	if got := s.do(boss, list, "", "Impersonate-User: u3", "Impersonate-Group: readers"); got.code != http.StatusTooManyRequests {
		t.Errorf("a third one of boss: %d", got.code)
	}
	if got := s.do(s.client("deployer"), "PUT /api/v1/namespaces/x/configmaps/c", ""); got.code != http.StatusOK {
		t.Errorf("another user: %d %s", got.code, got.body)
	}
	close(leave)
	for range 7 {
		if code := <-done; code != http.StatusOK {
			t.Errorf("one that was under way: %d", code)
		}
	}
	go func() { <-enter }()
	if got := s.do(ci, list, ""); got.code != http.StatusOK {
		t.Errorf("afterwards: %d", got.code)
	}
}

// TestBodies sends what is too large to who may write, and to who may not: that one is refused
// before anything is read.
func TestBodies(t *testing.T) {
	s := newServer(t, rules)
	const put = "PUT /api/v1/namespaces/x/configmaps/c"
	large := strings.Repeat("x", 3<<20)
	deployer := s.client("deployer")
	if got := s.do(deployer, put, large); got.code != http.StatusOK || !strings.Contains(got.body, fmt.Sprint(`"Body":`, 3<<20)) {
		t.Errorf("3 MiB: %d %s", got.code, got.body)
	}
	if got := s.do(deployer, put, large+"x"); got.code != http.StatusRequestEntityTooLarge || got.status(t).Reason != "RequestEntityTooLarge" {
		t.Errorf("more: %d %s", got.code, got.body)
	}
	chunked, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.url+"/api/v1/namespaces/x/configmaps/c", io.MultiReader(strings.NewReader(large), strings.NewReader("x")))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := deployer.Do(chunked)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("more, of a length that is not told: %d, %v", resp.StatusCode, err)
	}

	conn := s.dial("ci")
	if _, err := fmt.Fprintf(conn, "PUT /api/v1/namespaces/x/configmaps/c HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil) // nothing of the body was sent
	if err != nil || answer.StatusCode != http.StatusForbidden {
		t.Errorf("who may not: %v, %v", answer, err)
	}
}

// dial opens a connection with the certificate of a user, for HTTP/1.1 by hand.
func (s *server) dial(user string) net.Conn {
	s.t.Helper()
	cert, key, err := s.authority.Client(user, nil, time.Hour)
	if err != nil {
		s.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		s.t.Fatal(err)
	}
	cfg := s.stranger(pair).Transport.(*http.Transport).TLSClientConfig
	conn, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestUpgrade takes a connection over, as exec does, and writes the line of it when it ends.
func TestUpgrade(t *testing.T) {
	s := newServerOf(t, rules, auth.Config{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		_, _ = io.Copy(conn, rw)
	}))
	conn := s.dial("shell")
	if _, err := fmt.Fprintf(conn, "POST /api/v1/namespaces/x/pods/p/exec HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	answer, err := http.ReadResponse(r, nil)
	if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", answer, err)
	}
	if _, err := conn.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	if line, err := r.ReadString('\n'); line != "hello\n" || err != nil {
		t.Errorf("%q, %v", line, err)
	}
	if s.log.String() != "" {
		t.Errorf("before its end: %s", s.log)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	want := []map[string]any{{"user": "shell", "verb": "create", "resource": "pods/exec", "namespace": "x", "name": "p", "code": 101.}}
	if diff := cmp.Diff(want, s.lines(1)); diff != "" {
		t.Error(diff)
	}
}
