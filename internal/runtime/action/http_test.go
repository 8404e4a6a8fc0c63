package action

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/internal/config"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/record/events/messagestest"
)

func TestProbeHTTP(t *testing.T) {
	path := func(p string) func(*v1.HTTPGetAction) { return func(g *v1.HTTPGetAction) { g.Path = p } }
	port := func(p intstr.IntOrString) func(*v1.HTTPGetAction) { return func(g *v1.HTTPGetAction) { g.Port = p } }
	for _, tc := range []struct {
		name string
		get  *v1.HTTPGetAction
		want Result
	}{
		{"ok", httpGet(path("/200")), Result{Success, "status 200"}},
		{"lowest success", httpGet(path("/204")), Result{Success, ""}},
		{"highest success", httpGet(path("/399")), Result{Success, "status 399"}},
		{"not modified is no redirect", httpGet(path("/304")), Result{Success, ""}},
		{"client error", httpGet(path("/400")), Result{Failure, "HTTP probe failed with statuscode: 400"}},
		{"server error", httpGet(path("/500")), Result{Failure, "HTTP probe failed with statuscode: 500"}},
		{"query", httpGet(path("/echo?a=1&b=2")), Result{Success, "/echo?a=1&b=2"}},
		{"path without slash", httpGet(path("echo")), Result{Success, "/echo"}},
		{"no path", httpGet(path("")), Result{Failure, "HTTP probe failed with statuscode: 404"}},
		{"path that is no URL", httpGet(path("/echo%zz")), Result{Success, "/echo%25zz"}},
		{"named port", httpGet(path("/200"), port(intstr.FromString("http"))), Result{Success, "status 200"}},
		{"number as a string", httpGet(path("/200"), port(intstr.FromString("80"))), Result{Success, "status 200"}},
		{"unknown port name", httpGet(port(intstr.FromString("nope"))), Result{Unknown, `container "web" has no port that is named "nope"`}},
		{"port out of range", httpGet(port(intstr.FromInt32(70000))), Result{Unknown, `container "web": port 70000 is not between 1 and 65535`}},
		{"refused", httpGet(path("/x"), port(intstr.FromInt32(9))), Result{Failure, `Get "http://10.0.0.1:9/x": dial tcp: connection refused`}},
		{"another host", httpGet(func(g *v1.HTTPGetAction) { g.Host, g.Path = "10.9.9.9", "/200" }), Result{Success, "the other"}},
		{"long answer", httpGet(path("/long")), Result{Success, strings.Repeat("x", maxOutput)}},
		{"redirect to the same host", httpGet(path("/redirect/200")), Result{Success, "status 200"}},
		{"ten redirects", httpGet(path("/chain/10")), Result{Success, "chained"}},
		{"eleven redirects", httpGet(path("/chain/11")), Result{Warning, "Probe terminated redirects, Response body: "}},
		{"redirect to another host", httpGet(path("/away")), Result{Warning, "Probe terminated redirects, Response body: "}},
		{"slow", httpGet(path("/slow")), Result{Failure, `Get "http://10.0.0.1:80/slow": context deadline exceeded`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := pipes{}
				net.serve(t, "10.0.0.1:80", answer)
				net.serve(t, "10.9.9.9:80", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the other") })
				began := time.Now()
				got := New(Config{Dial: net.dial}).Probe(t.Context(), target, probeOf(v1.ProbeHandler{HTTPGet: tc.get}))
				messagestest.Saw("probe", "-", got.Output)
				if strings.HasPrefix(got.Output, "Probe terminated redirects") {
					got.Output, _, _ = strings.Cut(got.Output, "<a")
				}
				if d := cmp.Diff(tc.want, got); d != "" {
					t.Error(d)
				}
				if tc.name == "slow" {
					took(t, began, 2*time.Second)
				}
			})
		})
	}
}

// answer is a server whose paths say what it answers.
func answer(w http.ResponseWriter, r *http.Request) {
	var n int
	switch path := r.URL.Path; {
	case strings.HasPrefix(path, "/echo"):
		fmt.Fprint(w, r.URL.RequestURI())
	case path == "/long":
		fmt.Fprint(w, strings.Repeat("x", 3*maxOutput))
	case path == "/slow":
		<-r.Context().Done()
	case path == "/away":
		http.Redirect(w, r, "http://example.com/", http.StatusFound)
	case path == "/chain/0":
		fmt.Fprint(w, "chained")
	case scan(path, "/chain/%d", &n):
		http.Redirect(w, r, fmt.Sprintf("/chain/%d", n-1), http.StatusFound)
	case scan(path, "/redirect/%d", &n):
		http.Redirect(w, r, fmt.Sprintf("http://%s/%d", r.Host, n), http.StatusMovedPermanently)
	case scan(path, "/%d", &n):
		w.WriteHeader(n)
		if n != http.StatusNoContent && n != http.StatusNotModified {
			fmt.Fprintf(w, "status %d", n)
		}
	default:
		http.NotFound(w, r)
	}
}

func scan(path, format string, n *int) bool {
	got, err := fmt.Sscanf(path, format, n)
	return got == 1 && err == nil
}

func TestHTTPHeaders(t *testing.T) {
	version := strings.TrimPrefix(config.KubernetesVersion, "v")
	version = version[:strings.LastIndexByte(version, '.')]
	header := func(pairs ...string) *v1.HTTPGetAction {
		return httpGet(func(g *v1.HTTPGetAction) {
			for i := 0; i < len(pairs); i += 2 {
				g.HTTPHeaders = append(g.HTTPHeaders, v1.HTTPHeader{Name: pairs[i], Value: pairs[i+1]})
			}
		})
	}
	for _, tc := range []struct {
		name string
		get  *v1.HTTPGetAction
		hook bool
		want http.Header
		host string
	}{
		{"default of probes", header(), false, http.Header{"Accept": {"*/*"}, "User-Agent": {"kube-probe/" + version}}, "10.0.0.1:80"},
		{"default of hooks", header(), true, http.Header{"Accept": {"*/*"}, "User-Agent": {"kube-lifecycle/" + version}}, "10.0.0.1:80"},
		{"own agent", header("user-agent", "me"), false, http.Header{"Accept": {"*/*"}, "User-Agent": {"me"}}, "10.0.0.1:80"},
		{"no agent", header("User-Agent", ""), false, http.Header{"Accept": {"*/*"}}, "10.0.0.1:80"},
		{"own accept", header("Accept", "text/plain"), false, http.Header{"Accept": {"text/plain"}, "User-Agent": {"kube-probe/" + version}}, "10.0.0.1:80"},
		{"no accept", header("Accept", ""), false, http.Header{"User-Agent": {"kube-probe/" + version}}, "10.0.0.1:80"},
		{"host", header("Host", "example.com"), false, http.Header{"Accept": {"*/*"}, "User-Agent": {"kube-probe/" + version}}, "example.com"},
		{"twice", header("x-a", "1", "X-A", "2"), false, http.Header{"Accept": {"*/*"}, "User-Agent": {"kube-probe/" + version}, "X-A": {"1", "2"}}, "10.0.0.1:80"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got http.Header
				var host string
				net := pipes{}
				net.serve(t, "10.0.0.1:80", func(_ http.ResponseWriter, r *http.Request) { got, host = r.Header.Clone(), r.Host })
				a := New(Config{Dial: net.dial})
				var res Result
				if tc.hook {
					res = a.Hook(t.Context(), target, &v1.LifecycleHandler{HTTPGet: tc.get})
				} else {
					res = a.Probe(t.Context(), target, probeOf(v1.ProbeHandler{HTTPGet: tc.get}))
				}
				if res.Outcome != Success {
					t.Fatal(res)
				}
				if got.Get("Connection") != "close" {
					t.Error("the connection was not announced to be closed")
				}
				got.Del("Connection")
				if d := cmp.Diff(tc.want, got); d != "" {
					t.Error(d)
				}
				if host != tc.host {
					t.Errorf("got host %q, want %q", host, tc.host)
				}
			})
		})
	}
}

// A server's certificate is not verified, and one that speaks only HTTP/2 is understood.
func TestProbeHTTPS(t *testing.T) {
	for name, protocols := range map[string][]string{"http/1.1": {"http/1.1"}, "h2": {"h2"}} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) }))
			s.EnableHTTP2 = name == "h2"
			s.TLS = &tls.Config{NextProtos: protocols}
			s.StartTLS()
			defer s.Close()
			g := httpGet(func(g *v1.HTTPGetAction) {
				g.Scheme, g.Host, g.Port = v1.URISchemeHTTPS, "127.0.0.1", intstr.FromString(s.URL[strings.LastIndexByte(s.URL, ':')+1:])
			})
			got := New(Config{}).Probe(t.Context(), target, probeOf(v1.ProbeHandler{HTTPGet: g}))
			want := map[string]string{"http/1.1": "HTTP/1.1", "h2": "HTTP/2.0"}[name]
			if got != (Result{Success, want}) {
				t.Errorf("got %v, want success with %s", got, want)
			}
		})
	}
}

func TestHookHTTP(t *testing.T) {
	https := func(g *v1.HTTPGetAction) { g.Scheme = v1.URISchemeHTTPS }
	authorized := func(g *v1.HTTPGetAction) {
		g.HTTPHeaders = []v1.HTTPHeader{{Name: "Authorization", Value: "Bearer secret"}, {Name: "X", Value: "kept"}}
	}
	path := func(p string) func(*v1.HTTPGetAction) { return func(g *v1.HTTPGetAction) { g.Path = p } }
	for _, tc := range []struct {
		name  string
		get   *v1.HTTPGetAction
		want  Outcome
		calls []string
	}{
		{"the status does not matter", httpGet(path("/500")), Success, []string{"/500"}},
		{"redirects to other hosts are not followed", httpGet(path("/away")), Success, []string{"/away"}},
		{"redirects to the same host are", httpGet(path("/redirect/200")), Success, []string{"/redirect/200", "/200"}},
		{"long answer", httpGet(path("/long")), Success, []string{"/long"}},
		{"refused", httpGet(func(g *v1.HTTPGetAction) { g.Port = intstr.FromInt32(9) }), Failure, nil},
		{"unknown port", httpGet(func(g *v1.HTTPGetAction) { g.Port = intstr.FromString("nope") }), Failure, nil},
		{"headers are sent", httpGet(path("/200"), authorized), Success, []string{"/200 Bearer secret kept"}},
		{"https answered by http", httpGet(path("/200"), https, authorized), Warning, []string{"/200 kept"}},
		{"https refused", httpGet(https, func(g *v1.HTTPGetAction) { g.Port = intstr.FromInt32(9) }), Failure, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls []string
				net := pipes{}
				net.serve(t, "10.0.0.1:80", func(w http.ResponseWriter, r *http.Request) {
					calls = append(calls, strings.Join(strings.Fields(r.URL.Path+" "+r.Header.Get("Authorization")+" "+r.Header.Get("X")), " "))
					answer(w, r)
				})
				got := New(Config{Dial: net.dial}).Hook(t.Context(), target, &v1.LifecycleHandler{HTTPGet: tc.get})
				if got.Outcome != tc.want || (got.Outcome != Success) != (got.Output != "") {
					t.Errorf("got %v, want %s", got, tc.want)
				}
				if d := cmp.Diff(tc.calls, calls); d != "" {
					t.Error(d)
				}
			})
		})
	}
}

// A hook has no time-out of its own, and ends with its context.
func TestHookHTTPIsBoundedByContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := pipes{}
		net.serve(t, "10.0.0.1:80", answer)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		got := New(Config{Dial: net.dial}).Hook(ctx, target, &v1.LifecycleHandler{HTTPGet: httpGet(func(g *v1.HTTPGetAction) { g.Path = "/slow" })})
		if got.Outcome != Failure {
			t.Errorf("got %v", got)
		}
		took(t, began, time.Hour)
	})
}

// A hook that asks for HTTPS and is answered in HTTP is asked again, which counts.
func TestHookHTTPFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, registry := pipes{}, prometheus.NewRegistry()
		network.serve(t, "10.0.0.7:80", func(http.ResponseWriter, *http.Request) {})
		a := New(Config{Dial: network.dial, Metrics: registry})
		hook := func(scheme v1.URIScheme) Outcome {
			return a.Hook(t.Context(), Target{Container: &v1.Container{}, PodIP: "10.0.0.7"}, &v1.LifecycleHandler{
				HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt32(80), Scheme: scheme},
			}).Outcome
		}
		if got := hook(v1.URISchemeHTTP); got != Success {
			t.Error(got)
		}
		if got := hook(v1.URISchemeHTTPS); got != Warning {
			t.Error(got)
		}
		metricstest.Expect(t, registry, map[string]float64{"kubelet_lifecycle_handler_http_fallbacks_total": 1})
	})
}
