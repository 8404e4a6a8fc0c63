//go:build e2e

// Package registry tests the program registry over a store, as an agent runs it.
package registry

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"berth/internal/cluster/kube/kubetest"
	"berth/internal/localapi/registry"
	"berth/internal/localapi/store"
)

// node is what pods are bound to.
const node = "here"

// server is the program over a store, reached by everybody as an administrator.
type server struct {
	*testing.T
	store    *store.Store
	registry *registry.Registry
	url      string

	mu  sync.Mutex
	pid int // guarded by mu; of the newest child
}

func newServer(t *testing.T) *server {
	t.Helper()
	program, err := filepath.Abs(os.Getenv("REGISTRY"))
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil || os.Getenv("REGISTRY") == "" {
		t.Fatalf("REGISTRY must name the program registry, as make e2e does: %v", err)
	}
	folder, err := os.MkdirTemp("", "registry")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	s := &server{T: t}
	if s.store, err = store.Open(store.Config{Path: filepath.Join(folder, "api.db")}); err != nil {
		t.Fatal(err)
	}
	s.registry, err = registry.New(registry.Config{
		Program: program, Node: node, Socket: filepath.Join(folder, "s"), Store: s.store, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Confine: func(pid int) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.pid = pid
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		who := registry.Identity{Name: "admin", UID: "1", Groups: []string{"system:masters", "system:authenticated"}}
		s.registry.ServeHTTP(w, q.WithContext(registry.WithIdentity(q.Context(), who)))
	}))
	s.url = front.URL
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
		if err := s.registry.Close(); err != nil {
			t.Error(err)
		}
		if err := s.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// child is the process of the newest child.
func (s *server) child() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pid
}

// create makes an object, and returns what is answered.
func (s *server) create(path, object string) string {
	s.Helper()
	code, body := s.ask(http.MethodPost, path, object)
	if code != http.StatusCreated {
		s.Fatalf("POST %s: %d %s", path, code, body)
	}
	return body
}

func (s *server) ask(method, path, body string) (code int, answer string) {
	s.Helper()
	q, err := http.NewRequestWithContext(s.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(q)
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// first makes what an API has from the beginning.
func (s *server) first() {
	s.Helper()
	for _, namespace := range []string{"default", "kube-system"} {
		s.create("/api/v1/namespaces", fmt.Sprintf(`{"metadata":{"name":%q}}`, namespace))
		s.create("/api/v1/namespaces/"+namespace+"/serviceaccounts", `{"metadata":{"name":"default"}}`)
	}
	s.create("/api/v1/nodes", fmt.Sprintf(`{"metadata":{"name":%q}}`, node))
	for name, value := range map[string]int{"system-node-critical": 2000001000, "system-cluster-critical": 2000000000} {
		s.create("/apis/scheduling.k8s.io/v1/priorityclasses", fmt.Sprintf(`{"metadata":{"name":%q},"value":%d}`, name, value))
	}
}

// forget has the store forget what it has answered so far.
func (s *server) forget() string {
	s.Helper()
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			key, seen := store.Key{Resource: "nothings", Name: fmt.Sprint(i)}, uint64(0)
			for range 4096/64 + 1 {
				var err error
				if seen, err = s.store.Write(key, seen, []byte("v")); err != nil {
					s.Error(err)
					return
				}
			}
			if _, err := s.store.Write(key, seen, nil); err != nil {
				s.Error(err)
			}
		})
	}
	all.Wait()
	return "1"
}

// TestContract runs the contract that agents rely on over the program.
func TestContract(t *testing.T) {
	s := newServer(t)
	s.first()
	kubetest.RunContract(t, func(*testing.T) kubetest.Target {
		return kubetest.Target{Config: &rest.Config{Host: s.url}, Forgotten: s.forget, Lacks: lacks}
	})
}
