//go:build e2e

package localapi

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// TestRightsGoWhileRequestsRun follows a log and watches pods by the token of a service account,
// and takes away first the rule for logs, then the account.
func TestRightsGoWhileRequestsRun(t *testing.T) {
	t.Parallel()
	s, _ := start(t, folder(t), follows)
	s.must("", []string{"wait", "--for=create", "serviceaccount/default", "--timeout=30s"})
	s.must("", []string{"create", "serviceaccount", "robot"})
	s.must(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"main","image":"registry.example/web:1"}]}}`, []string{"create", "-f", "-"})
	s.register()
	s.scheduled("web")
	const mayWatch = "rules:\n- {users: ['system:serviceaccount:default:robot'], verbs: [watch, get], resources: [pods"
	s.rules(mayWatch + ", pods/log]}\n")
	client := s.bearer(strings.TrimSpace(s.must("", []string{"create", "token", "robot"})))
	const watch, log = "/api/v1/namespaces/default/pods?watch=1", "/api/v1/namespaces/default/pods/web/log?follow=1"
	watching, following := s.begin(client, watch), s.begin(client, log)
	s.rules(mayWatch + "]}\n")
	if _, err := io.Copy(io.Discard, following); err != nil {
		t.Errorf("the log does not end in good order: %v", err)
	}
	s.refused(client, log, http.StatusForbidden)
	s.must("", []string{"label", "pod", "web", "tier=front"})
	for told := ""; !strings.Contains(told, "front"); { // it goes on
		b := make([]byte, 64<<10)
		n, err := watching.Read(b)
		if err != nil {
			t.Fatalf("the watch ended with the right to logs: %v", err)
		}
		told += string(b[:n])
	}
	s.must("", []string{"delete", "serviceaccount", "robot"})
	if _, err := io.Copy(io.Discard, watching); err != nil {
		t.Errorf("the watch does not end in good order: %v", err)
	}
	s.refused(client, watch, http.StatusUnauthorized)
}

// rules writes the file of rules.
func (s *server) rules(text string) {
	s.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, "root", "access.yaml"), []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
}

// bearer is a client with a token.
func (s *server) bearer(token string) *http.Client {
	s.Helper()
	c := rest.AnonymousClientConfig(s.config())
	c.BearerToken = token
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		s.Fatal(err)
	}
	return client
}

func (s *server) get(client *http.Client, path string) *http.Response {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), http.MethodGet, s.config().Host+path, http.NoBody)
	if err != nil {
		s.Fatal(err)
	}
	response, err := client.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	return response
}

// begin begins a request that goes on.
func (s *server) begin(client *http.Client, path string) io.Reader {
	s.Helper()
	response := s.get(client, path)
	s.Cleanup(func() { _ = response.Body.Close() })
	if response.StatusCode != http.StatusOK {
		s.Fatalf("%s: %d", path, response.StatusCode)
	}
	return response.Body
}

// refused sends a request that must be refused.
func (s *server) refused(client *http.Client, path string, code int) {
	s.Helper()
	response := s.get(client, path)
	defer response.Body.Close()
	if response.StatusCode != code {
		s.Errorf("%s: %d, want %d", path, response.StatusCode, code)
	}
}
