package nodeproxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// newProxy has the nodes n, whose node API node serves, and other.
func newProxy(t *testing.T, port int32, node http.Handler) *Proxy {
	t.Helper()
	s, err := store.Open(store.Config{Path: filepath.Join(t.TempDir(), "api.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for _, name := range []string{"n", "other"} {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = port
		value, err := kinds.Encode(n)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Write(store.Key{Resource: "nodes", Name: name}, 0, value); err != nil {
			t.Fatal(err)
		}
	}
	return New(s, "n", node)
}

func echo(w http.ResponseWriter, r *http.Request) {
	fmt.Fprint(w, r.Method, " ", r.RequestURI, " ", r.URL.Path)
}

func TestPassedOn(t *testing.T) {
	for target, want := range map[string]string{
		"n/proxy/metrics":                     "GET /metrics /metrics",
		"n:10250/proxy/metrics/cadvisor":      "GET /metrics/cadvisor /metrics/cadvisor",
		"https:n:10250/proxy/pods":            "GET /pods /pods",
		"https:n:/proxy/pods":                 "GET /pods /pods",
		"n/proxy/stats/summary?a=b&c=%2F":     "GET /stats/summary?a=b&c=%2F /stats/summary",
		"n/proxy/logs/":                       "GET /logs/ /logs/",
		"n/proxy/logs/?query=kubelet&boot=-1": "GET /logs/?query=kubelet&boot=-1 /logs/",
		"n/proxy/logs/a%20b":                  "GET /logs/a%20b /logs/a b",
		"n/proxy/logs/%252e%252e":             "GET /logs/%252e%252e /logs/%2e%2e",
		"n/proxy/logs/a%3Fquery=x":            "GET /logs/a%3Fquery=x /logs/a?query=x",
		"n/proxy":                             "GET / /",
		"n/proxy/":                            "GET / /",
	} {
		w := httptest.NewRecorder()
		newProxy(t, 0, http.HandlerFunc(echo)).ServeHTTP(w, httptest.NewRequest("GET", "/api/v1/nodes/"+target, http.NoBody))
		if w.Code != http.StatusOK || w.Body.String() != want {
			t.Errorf("%s: got %d %s, want %s", target, w.Code, w.Body, want)
		}
	}
}

func TestRefused(t *testing.T) {
	untouched := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("the node API is asked for %s", r.RequestURI) })
	for _, c := range []struct {
		port            int32
		request, reason string
	}{
		{0, "GET /api/v1/nodes/x/proxy/metrics", `404 nodes "x" not found`},
		{0, "GET /api/v1/nodes/other/proxy/metrics", "503 node other is not served here (ask its own API; this is node n)"},
		{0, "GET /api/v1/nodes/other:10250/proxy/metrics", "503 node other is not served here (ask its own API; this is node n)"},
		{0, "GET /api/v1/nodes/n:22/proxy/metrics", `400 invalid node request "n:22" (the node API is https:n:10250)`},
		{0, "GET /api/v1/nodes/http:n:10250/proxy/metrics", `400 invalid node request "http:n:10250" (the node API is https:n:10250)`},
		{10350, "GET /api/v1/nodes/n:10250/proxy/metrics", `400 invalid node request "n:10250" (the node API is https:n:10350)`},
		{0, "GET /api/v1/nodes/ftp:n:10250/proxy/metrics", `400 invalid node request "ftp:n:10250" (use NAME, NAME:PORT or https:NAME:PORT)`},
		{0, "GET /api/v1/nodes/a:b:c:d/proxy/metrics", `400 invalid node request "a:b:c:d" (use NAME, NAME:PORT or https:NAME:PORT)`},
		{0, "GET /api/v1/nodes/:10250/proxy/metrics", `400 invalid node request ":10250" (use NAME, NAME:PORT or https:NAME:PORT)`},
		{0, "GET /api/v1/namespaces/x/nodes/n/proxy/metrics", "404 the server could not find the requested resource"},
		{0, "GET /api/v1/watch/nodes/n/proxy/metrics", "404 the server could not find the requested resource"},
		{0, "POST /api/v1/nodes/n/proxy/stats/summary", "405 the server does not allow this method on the requested resource"},
		{0, "PUT /api/v1/nodes/n/proxy/debug/flags/v", "405 the server does not allow this method on the requested resource"},
		{0, "DELETE /api/v1/nodes/n/proxy/pods", "405 the server does not allow this method on the requested resource"},
		{0, "CONNECT /api/v1/nodes/n/proxy/pods", "405 the server does not allow this method on the requested resource"},
	} {
		method, target, _ := strings.Cut(c.request, " ")
		w := httptest.NewRecorder()
		newProxy(t, c.port, untouched).ServeHTTP(w, httptest.NewRequest(method, target, http.NoBody))
		var s metav1.Status
		if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil || fmt.Sprint(w.Code, " ", s.Message) != c.reason || int(s.Code) != w.Code {
			t.Errorf("%s: got %d %s, want %s", c.request, w.Code, w.Body, c.reason)
		}
	}
	w := httptest.NewRecorder()
	newProxy(t, 0, nil).ServeHTTP(w, httptest.NewRequest("GET", "/api/v1/nodes/n/proxy/pods", http.NoBody))
	if w.Code != http.StatusNotFound {
		t.Errorf("without a node API: %d %s", w.Code, w.Body)
	}
}
