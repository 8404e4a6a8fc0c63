//go:build e2e

// Package apiserver tests the program apiserver over a store, as an agent runs it.
package apiserver

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"berth/internal/cluster/kube/kubetest"
	"berth/internal/localapi/apiserver"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// node is what pods are bound to.
const node = "here"

// server is the program over a store, reached by everybody as an administrator.
type server struct {
	*testing.T
	store    *store.Store
	registry *apiserver.Child
	url      string

	mu  sync.Mutex
	pid int // guarded by mu; of the newest child
}

func program(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(os.Getenv("APISERVER"))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil || os.Getenv("APISERVER") == "" {
		t.Fatalf("APISERVER must name the program apiserver, as make e2e does: %v", err)
	}
	return path
}

func newServer(t *testing.T) *server {
	t.Helper()
	folder, err := os.MkdirTemp("", "apiserver")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	s := &server{T: t}
	if s.store, err = store.Open(store.Config{Path: filepath.Join(folder, "api.db")}); err != nil {
		t.Fatal(err)
	}
	s.registry, err = apiserver.New(apiserver.Config{
		Program: program(t), Node: node, Socket: filepath.Join(folder, "s"), Store: s.store, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Confine: func() (apiserver.Cgroup, error) { return s, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		who := apiserver.Identity{Name: "admin", UID: "1", Groups: []string{"system:masters", "system:authenticated"}}
		s.registry.ServeHTTP(w, q.WithContext(apiserver.WithIdentity(q.Context(), who)))
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

// Start starts a child in no cgroup.
func (s *server) Start(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pid = cmd.Process.Pid
	return nil
}

func (s *server) Exceeded() error              { return nil }
func (s *server) Remove(context.Context) error { return nil }

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
	s.create("/api/v1/nodes", fmt.Sprintf(`{"metadata":{"name":%q},"status":{"allocatable":{"cpu":"8","memory":"8Gi","pods":"100"}}}`, node))
	for name, value := range map[string]int{"system-node-critical": 2000001000, "system-cluster-critical": 2000000000} {
		s.create("/apis/scheduling.k8s.io/v1/priorityclasses", fmt.Sprintf(`{"metadata":{"name":%q},"value":%d}`, name, value))
	}
}

// forget has the store forget what it has answered so far.
func (s *server) forget() string {
	s.Helper()
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			key, seen := store.Key{Resource: "nothings", Name: rand.Text()}, uint64(0)
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

// TestWrites tells what the program makes of objects as an agent relies on it.
func TestWrites(t *testing.T) {
	s := newServer(t)
	s.first()
	pod := decode[v1.Pod](s, s.create("/api/v1/namespaces/default/pods", `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`))
	volumes := 0
	for _, v := range pod.Spec.Volumes {
		if v.Projected != nil && strings.HasPrefix(v.Name, "kube-api-access-") {
			volumes++
		}
	}
	if pod.Spec.NodeName != "" || volumes != 1 || pod.Spec.Priority == nil || len(pod.Spec.Tolerations) != 2 || pod.Spec.ServiceAccountName != "default" {
		t.Errorf("spec = %+v, want no node, a volume of a token, priority, tolerations and service account", pod.Spec)
	}
	if len(pod.ManagedFields) != 1 || pod.ManagedFields[0].Manager != "Go-http-client" {
		t.Errorf("managed fields = %v, want those of this client", pod.ManagedFields)
	}

	// What is stored is what the agent's reads decode.
	item, err := s.store.Get(store.Key{Resource: "pods", Namespace: "default", Name: "p"})
	if err != nil {
		t.Fatal(err)
	}
	stored, kind, err := kinds.Codecs().UniversalDeserializer().Decode(item.Value, nil, nil)
	if err != nil || *kind != v1.SchemeGroupVersion.WithKind("Pod") || !strings.HasPrefix(string(item.Value), "k8s\x00") {
		t.Fatalf("stored is a %v, %v", kind, err)
	}
	if p := stored.(*v1.Pod); p.ResourceVersion != "" || p.UID != pod.UID || fmt.Sprint(item.Revision) != pod.ResourceVersion {
		t.Errorf("stored: version %q, UID %s at revision %d; want none, %s, and %s", p.ResourceVersion, p.UID, item.Revision, pod.UID, pod.ResourceVersion)
	}

	// Events of both groups are the same objects.
	s.create("/apis/events.k8s.io/v1/namespaces/default/events", `{"metadata":{"name":"e"},"eventTime":"2026-01-01T00:00:00.000000Z","type":"Normal","reason":"R","action":"A","reportingController":"example.com/c","reportingInstance":"i","regarding":{"kind":"Pod","namespace":"default","name":"p"}}`)
	if code, body := s.ask(http.MethodGet, "/api/v1/namespaces/default/events/e", ""); code != http.StatusOK || decode[v1.Event](s, body).InvolvedObject.Name != "p" {
		t.Errorf("the event in the core: %d %s", code, body)
	}
	if _, err := s.store.Get(store.Key{Resource: "events", Namespace: "default", Name: "e"}); err != nil {
		t.Error(err)
	}

	// A scheduler binds the pod, and what the agent answers is refused.
	binding := func(target string) string {
		return `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"p"},"target":{"kind":"Node","name":"` + target + `"}}`
	}
	s.create("/api/v1/namespaces/default/pods/p/binding", binding(node))
	for path, want := range map[string]string{
		"/api/v1/namespaces/default/pods/p/binding":    `pod p is already assigned to node \"here\"`,
		"/api/v1/namespaces/default/pods/p/exec":       "the agent answers this itself",
		"/api/v1/nodes/here/proxy/pods":                "the agent answers this itself",
		"/apis/apps/v1/namespaces/default/deployments": "/apis/node.k8s.io/v1", // the paths that there are
	} {
		if code, body := s.ask(http.MethodPost, path, binding("x")); code < 400 || !strings.Contains(body, want) {
			t.Errorf("POST %s: %d %s, want %q", path, code, body, want)
		}
	}
	if code, body := s.ask(http.MethodPost, "/api/v1/namespaces/none/configmaps", `{"metadata":{"name":"m"}}`); code != http.StatusNotFound || !strings.Contains(body, `namespaces \"none\" not found`) {
		t.Errorf("an object of a namespace that is not there: %d %s", code, body)
	}
}

// TestDiscoveryHasAllKinds compares the kinds that the agent knows with what the program serves.
func TestDiscoveryHasAllKinds(t *testing.T) {
	s := newServer(t)
	for _, k := range kinds.All {
		path := "/apis/" + k.Group + "/" + k.Version
		if k.Group == "" {
			path = "/api/" + k.Version
		}
		code, body := s.ask(http.MethodGet, path, "")
		if code != http.StatusOK {
			t.Fatalf("GET %s: %d %s", path, code, body)
		}
		have := map[string]metav1.APIResource{}
		for _, r := range decode[metav1.APIResourceList](s, body).APIResources {
			have[r.Name] = r
		}
		if r := have[k.Plural]; r.Kind != k.Kind || r.Namespaced != k.Namespaced {
			t.Errorf("%s: the program has %+v", k.GroupVersionKind, r)
		}
		for _, sub := range k.Subresources {
			if _, ok := have[k.Plural+"/"+sub]; !ok {
				t.Errorf("%s: the program has no subresource %s", k.GroupVersionKind, sub)
			}
		}
		for name := range have {
			if plural, sub, ok := strings.Cut(name, "/"); ok && plural == k.Plural && !slices.Contains(k.Subresources, sub) {
				t.Errorf("%s: the agent does not know the subresource %s", k.GroupVersionKind, sub)
			}
		}
	}
}

// TestDiscoveryHasNodeProxy compares nodes/proxy in discovery with what kube-apiserver lists.
func TestDiscoveryHasNodeProxy(t *testing.T) {
	s := newServer(t)
	code, body := s.ask(http.MethodGet, "/api/v1", "")
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	resources := decode[metav1.APIResourceList](s, body).APIResources
	want := metav1.APIResource{Name: "nodes/proxy", Kind: "NodeProxyOptions", Verbs: metav1.Verbs{"create", "delete", "get", "patch", "update"}}
	at := slices.IndexFunc(resources, func(r metav1.APIResource) bool { return r.Name == want.Name })
	if at < 0 {
		t.Fatalf("no %s in %s", want.Name, body)
	}
	if diff := cmp.Diff(want, resources[at]); diff != "" {
		t.Errorf("%s (-want +got):\n%s", want.Name, diff)
	}
}

// TestChildIsExpendable kills the program and goes on.
func TestChildIsExpendable(t *testing.T) {
	s := newServer(t)
	s.first()
	for i := range 2 {
		if err := syscall.Kill(s.child(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for { // the first may come before the end is noticed
			code, body := s.ask(http.MethodPost, "/api/v1/namespaces/default/configmaps", fmt.Sprintf(`{"metadata":{"name":"m%d"}}`, i))
			if code == http.StatusCreated {
				break
			}
			if code != http.StatusServiceUnavailable || !strings.Contains(body, "signal: killed") {
				t.Fatalf("%d %s", code, body)
			}
		}
	}
	if err := s.registry.Health(); err != nil {
		t.Errorf("two deaths: %v", err)
	}
}

// TestProgramWithoutAnAgent starts the program by hand.
func TestProgramWithoutAnAgent(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--node", "n"}, 2, "descriptor 3 must be a socket that listens; the agent starts this program"},
		{[]string{"--node", "N_"}, 2, `--node \"N_\" must be the name of a Node`},
		{nil, 2, `--node \"\" must be the name of a Node`},
		{[]string{"--nonsense"}, 2, "flag provided but not defined: -nonsense"},
		{[]string{"--help"}, 0, ""},
	} {
		cmd := exec.Command(program(t), c.args...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		_ = cmd.Run() // its code is compared
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(stderr.String(), c.want) || strings.Count(stderr.String(), "\n") > 1 {
			t.Errorf("apiserver %q: exit code %d, want %d, and %q in one line:\n%s", c.args, code, c.code, c.want, stderr.String())
		}
	}
}

// TestProgramEndsWithTheAgent closes what the end of an agent closes.
func TestProgramEndsWithTheAgent(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	socket, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	here, there := os.NewFile(uintptr(ends[0]), "agent"), os.NewFile(uintptr(ends[1]), "program")
	cmd := exec.Command(program(t), "--node", node)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	cmd.ExtraFiles = []*os.File{socket, there}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range cmd.ExtraFiles {
		_ = f.Close()
	}
	if err := here.Close(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // its code is compared
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(stderr.String(), "the agent is gone") {
		t.Errorf("exit code %d, want 1:\n%s", code, stderr.String())
	}
}

func decode[T any](s *server, body string) T {
	s.Helper()
	var object T
	if err := json.Unmarshal([]byte(body), &object); err != nil {
		s.Fatalf("%v: %s", err, body)
	}
	return object
}
