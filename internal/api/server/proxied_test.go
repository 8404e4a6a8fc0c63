package server_test

import (
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"berth/internal/api/server"
	"berth/internal/pod"
)

// TestProxied requests every path of the node API, and some that are not its: through an API server
// no path enters a container, changes the node, or is served in another form than it was authorized
// in.
func TestProxied(t *testing.T) {
	cfg := wholeNode(t)
	cfg.Handlers.Streams.Runtime = watchfulRuntime{t}
	cfg.Handlers.Configuration.Configz = func() any { return map[string]int{"maxPods": 110} }
	cfg.Listen = func() (net.Listener, error) { return nil, net.ErrClosed }
	cfg.Log = slog.New(slog.DiscardHandler)
	open, err := server.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Handlers.Observed.List = func() []*pod.Status { return nil }
	cfg.Kubelet = &server.Kubelet{DisableDebugging: true}
	closed, err := server.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, path string
		code         int // of closed: 405 for logs, else the same
		body         string
	}{
		{"GET", "/metrics", 200, "# scraped"},
		{"HEAD", "/metrics", 200, ""},
		{"GET", "/metrics/cadvisor", 200, "# scraped"},
		{"GET", "/metrics/resource", 200, "# scraped"},
		{"GET", "/metrics/probes", 200, "# scraped"},
		{"GET", "/metrics/slis", 200, "# scraped"},
		{"GET", "/stats/summary?only_cpu_and_memory=true", 200, `"node"`},
		{"GET", "/pods", 200, `"kind":"PodList"`},
		{"GET", "/pods/", 200, `"kind":"PodList"`},
		{"GET", "/healthz", 200, "ok"},
		{"GET", "/healthz/syncloop", 200, "ok"},
		{"GET", "/configz", 200, `{"kubeletconfig":{"maxPods":110}}`},
		{"GET", "/logs/", 200, "a.log"},
		{"GET", "/logs/a.log", 200, ""},

		{"GET", "/", 404, ""},
		{"GET", "/metrics/", 404, ""},
		{"GET", "/runningpods/", 404, ""},
		{"GET", "/containerLogs/default/web/main", 404, ""},
		{"GET", "/exec/default/web/main?command=ls&output=1", 404, ""},
		{"POST", "/exec/default/web/main?command=ls&output=1", 404, ""},
		{"GET", "/attach/default/web/main?output=1", 404, ""},
		{"POST", "/portForward/default/web", 404, ""},
		{"POST", "/run/default/web/main?cmd=ls", 404, ""},
		{"POST", "/checkpoint/default/web/main", 404, ""},
		{"GET", "/debug/pprof/heap", 404, ""},
		{"PUT", "/debug/flags/v", 404, ""},
		{"GET", "/flagz", 404, ""},
		{"GET", "/statusz", 404, ""},
		{"GET", "/berth/v1/version", 404, ""},
		{"POST", "/berth/v1/stop", 404, ""},
		{"POST", "/berth/v1/view", 404, ""},
		{"GET", "/metrics/../exec/default/web/main", 404, ""},
		{"GET", "/logs/../../etc/shadow", 404, ""},
		{"GET", "/logs/%2e%2e/x", 404, ""},
		{"GET", "/logs//a.log", 404, ""},
		{"GET", "//metrics", 404, ""},
		{"GET", "/./metrics", 404, ""},
		{"DELETE", "/pods", 405, ""},
		{"POST", "/configz", 405, ""},
	} {
		u, err := url.Parse("http://node" + c.path)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []*server.Server{open, closed} {
			code := c.code
			if s == closed && debugging(u.Path) {
				code = http.StatusMethodNotAllowed
			}
			w := httptest.NewRecorder()
			s.Proxied().ServeHTTP(w, &http.Request{Method: c.method, URL: u, Header: http.Header{}, Body: http.NoBody})
			if w.Code != code || code == c.code && !strings.Contains(w.Body.String(), c.body) {
				t.Errorf("%s %s: got %d %s, want %d %s", c.method, c.path, w.Code, w.Body, code, c.body)
			}
		}
	}
}

// debugging reports whether enableDebuggingHandlers closes a path.
func debugging(path string) bool {
	for _, p := range []string{"/exec/", "/attach/", "/run/", "/portForward/", "/containerLogs/", "/runningpods/", "/logs/", "/debug/"} {
		if strings.HasPrefix(path, p) {
			return true
		}
	}
	return false
}
