package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"berth/internal/api/nodelogs"
	"berth/internal/api/server"
	"berth/internal/observe/stats"
	"berth/internal/pod"
)

// nodeSubresources are all that rules about the kubelet's API name.
var nodeSubresources = []string{"proxy", "stats", "metrics", "log", "checkpoint", "pods", "healthz", "configz", "statusz"}

var verbs = []string{"get", "create", "update", "patch", "delete"}

// methods are the columns of the matrix. What OPTIONS asks for has no verb, so that no rule that
// names verbs allows it.
var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

type emptyStats struct{}

func (emptyStats) Summary(context.Context, stats.Scope) (*summary.Summary, error) {
	return &summary.Summary{}, nil
}

// wholeNode is a node that has everything that the kubelet's port can show: the pod web, whose
// container main runs and has a log.
func wholeNode(t *testing.T) server.Config {
	n := newNode(aPod("web", "2", v1.PodRunning))
	n.logs = map[pod.ContainerID]string{"web2": filepath.Join(t.TempDir(), "0.log")}
	writeLines(t, n.logs["web2"], "one")
	h := n.handlers()
	streaming := streamingNode(&streamer{sync: runtimeapi.ExecSyncResponse{}})
	h.Streams, h.Observed, h.Stats = streaming.Streams, streaming.Observed, emptyStats{}
	scraped := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "# scraped\n") })
	return server.Config{Handlers: h, NodeLogs: nodeLogs(t), Debug: server.Debug{Profiling: true, SetVerbosity: func(uint32) {}}, Scrapes: map[string]http.Handler{
		server.PathMetrics: scraped, server.PathCadvisor: scraped, server.PathResource: scraped, server.PathProbes: scraped, server.PathSLIs: scraped,
	}}
}

// checkpointer writes an archive, readable by all; it fails with err after that.
type checkpointer struct {
	asked *runtimeapi.CheckpointContainerRequest // set by the call
	err   error
}

func (c checkpointer) CheckpointContainer(_ context.Context, r *runtimeapi.CheckpointContainerRequest) error {
	if c.asked != nil {
		*c.asked = runtimeapi.CheckpointContainerRequest{ContainerId: r.ContainerId, Location: r.Location, Timeout: r.Timeout}
	}
	return errors.Join(os.WriteFile(r.Location, []byte("memory"), 0o644), c.err)
}

// nodeLogs is a log folder with the file a.log, on a node without a journal.
func nodeLogs(t *testing.T) server.NodeLogs {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.log"), []byte("one\ntwo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return server.NodeLogs{Logs: &nodelogs.Logs{Dir: dir, Journalctl: "no-journalctl"}, Query: true}
}

// client sends requests to the HTTPS port with one certificate, or none.
func (k *kubelet) client(cert *tls.Certificate) *http.Transport {
	roots := x509.NewCertPool()
	roots.AddCert(k.serving.Leaf)
	cfg := &tls.Config{RootCAs: roots, ServerName: "node"}
	if cert != nil {
		cfg.Certificates = []tls.Certificate{*cert}
	}
	return &http.Transport{
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return k.secure.dial(ctx) },
		TLSClientConfig: cfg,
	}
}

// status sends one request and returns the status of its answer.
func (k *kubelet) status(via *http.Transport, method, path string) int {
	k.t.Helper()
	req, err := http.NewRequestWithContext(k.t.Context(), method, "https://node"+path, nil)
	if err != nil {
		k.t.Fatal(err)
	}
	resp, err := via.RoundTrip(req)
	if err != nil {
		k.t.Fatalf("%s %s: %v", method, path, err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		k.t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// Every endpoint, by every method, for those who show nothing, show a bad certificate, may do
// everything but this, and may do this alone.
func TestMatrixOfAccess(t *testing.T) {
	refused, alien := [7]int{401, 401, 401, 401, 401, 401, 401}, [7]int{403, 403, 403, 403, 403, 403, 403}
	readOnly := [7]int{200, 200, 405, 405, 405, 405, 403}
	missing := [7]int{404, 404, 404, 404, 404, 404, 403}
	missing405 := [7]int{404, 404, 405, 405, 405, 405, 403} // the path is there, what it names is not
	// Streams need a request to upgrade the connection, and create whatever the method.
	upgraded := [7]int{400, 400, 400, 405, 405, 405, 405}
	for _, e := range []struct {
		path    string
		needs   []string // any of these subresources
		creates bool     // it needs the verb create
		want    [7]int
	}{
		{"/healthz", []string{"healthz", "proxy"}, false, readOnly},
		{"/healthz/ping", []string{"healthz", "proxy"}, false, readOnly},
		{"/healthz/log", []string{"healthz", "proxy"}, false, readOnly},
		{"/healthz/syncloop", []string{"healthz", "proxy"}, false, readOnly},
		{"/pods", []string{"pods", "proxy"}, false, readOnly},
		{"/pods/", []string{"pods", "proxy"}, false, readOnly},
		{"/runningpods", []string{"pods", "proxy"}, false, readOnly},
		{"/runningpods/", []string{"pods", "proxy"}, false, readOnly},
		{"/configz", []string{"configz", "proxy"}, false, readOnly},
		{"/statusz", []string{"statusz"}, false, readOnly},
		{"/flagz", []string{"configz", "proxy"}, false, readOnly},
		{"/stats/summary", []string{"stats"}, false, [7]int{200, 200, 200, 405, 405, 405, 403}},
		{"/stats/summary/", []string{"stats"}, false, [7]int{200, 200, 200, 405, 405, 405, 403}},
		{"/metrics", []string{"metrics"}, false, readOnly},
		{"/metrics/cadvisor", []string{"metrics"}, false, readOnly},
		{"/metrics/resource", []string{"metrics"}, false, readOnly},
		{"/metrics/probes", []string{"metrics"}, false, readOnly},
		{"/metrics/slis", []string{"metrics"}, false, readOnly},
		{"/containerLogs/default/web/main", []string{"proxy"}, false, readOnly},
		{"/exec/default/web/main?command=ls&output=1", []string{"proxy"}, true, upgraded},
		{"/exec/default/web/2/main?command=ls&output=1", []string{"proxy"}, true, upgraded},
		{"/attach/default/web/main?output=1", []string{"proxy"}, true, upgraded},
		{"/attach/default/web/2/main?output=1", []string{"proxy"}, true, upgraded},
		{"/portForward/default/web", []string{"proxy"}, true, upgraded},
		{"/portForward/default/web/2", []string{"proxy"}, true, upgraded},
		{"/run/default/web/main?cmd=ls", []string{"proxy"}, true, [7]int{405, 405, 200, 405, 405, 405, 405}},
		{"/run/default/web/2/main?cmd=ls", []string{"proxy"}, true, [7]int{405, 405, 200, 405, 405, 405, 405}},
		// What is not there is not told to those who may not ask; the local API's paths are not
		// there.
		{"/", []string{"proxy"}, false, missing},
		{"/nothing", []string{"proxy"}, false, missing},
		{"/healthz/nothing", []string{"healthz", "proxy"}, false, missing},
		{"/stats/nothing", []string{"stats"}, false, missing},
		{"/berth/v1/version", []string{"proxy"}, false, missing},
		{"/berth/v1/stop", []string{"proxy"}, false, missing},
		{"/logs", []string{"log"}, false, readOnly},
		{"/logs/", []string{"log"}, false, readOnly},
		{"/logs/a.log", []string{"log"}, false, readOnly},
		{"/logs/nothing", []string{"log"}, false, missing405},
		{"/logs/?query=/a.log", []string{"log"}, false, readOnly},
		{"/logs/?query=nothing", []string{"log"}, false, missing405},
		{"/logs/?query=a%20b", []string{"log"}, false, [7]int{406, 406, 405, 405, 405, 405, 403}},
		{"/logs/?query=/a.log&tailLines=x", []string{"log"}, false, [7]int{400, 400, 405, 405, 405, 405, 403}},
		{"/logs/a.log?query=a", []string{"log"}, false, [7]int{406, 406, 405, 405, 405, 405, 403}},
		{"/checkpoint/default/web/main", []string{"checkpoint"}, false, [7]int{405, 405, 200, 405, 405, 405, 403}},
		{"/checkpoint/default/web/main?timeout=x", []string{"checkpoint"}, false, [7]int{405, 405, 400, 405, 405, 405, 403}},
		{"/checkpoint/default/web/late", []string{"checkpoint"}, false, [7]int{405, 405, 404, 405, 405, 405, 403}},
		{"/checkpoint/default/nothing/main", []string{"checkpoint"}, false, [7]int{405, 405, 404, 405, 405, 405, 403}},
		{"/checkpoint/default/web", []string{"checkpoint"}, false, missing},
		{"/debug/pprof", []string{"proxy"}, false, missing},
		{"/debug/pprof/", []string{"proxy"}, false, readOnly},
		{"/debug/pprof/heap", []string{"proxy"}, false, readOnly},
		{"/debug/pprof/cmdline", []string{"proxy"}, false, readOnly},
		{"/debug/pprof/symbol", []string{"proxy"}, false, [7]int{200, 200, 200, 405, 405, 405, 403}},
		{"/debug/pprof/nothing", []string{"proxy"}, false, missing405},
		{"/debug/pprof/heap?seconds=301", []string{"proxy"}, false, [7]int{400, 400, 405, 405, 405, 405, 403}},
		{"/debug/flags/v", []string{"proxy"}, false, [7]int{405, 405, 405, 400, 405, 405, 403}},
		{"/debug/nothing", []string{"proxy"}, false, missing},
	} {
		t.Run(e.path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reviewer := &apiServer{allowed: map[string]bool{}}
				needed := map[string]bool{}
				for _, sub := range e.needs {
					for _, verb := range verbs {
						needed[verb+" "+sub] = !e.creates || verb == "create"
						reviewer.allowed["by-"+sub+" "+verb+" "+sub] = needed[verb+" "+sub]
					}
				}
				for _, sub := range nodeSubresources {
					for _, verb := range verbs {
						reviewer.allowed["else "+verb+" "+sub] = !needed[verb+" "+sub]
					}
				}
				k := serveKubeletWith(t, wholeNode(t), server.Kubelet{
					Checkpoints: server.Checkpoints{Runtime: checkpointer{}, Dir: filepath.Join(t.TempDir(), "checkpoints")},
					Authentication: server.Authentication{VerifyClient: func(chain []*x509.Certificate) error {
						if chain[0].Subject.CommonName == "mallory" {
							return errors.New("unknown authority")
						}
						return nil
					}, Tokens: reviewer},
					Authorization: server.Authorization{Mode: server.Webhook, Reviewer: reviewer},
				})
				check := func(who string, cert *tls.Certificate, want [7]int) {
					t.Helper()
					via := k.client(cert)
					defer via.CloseIdleConnections()
					var got [7]int
					for i, method := range methods {
						got[i] = k.status(via, method, e.path)
					}
					if got != want {
						t.Errorf("%s: %v answer %v, want %v", who, methods, got, want)
					}
				}
				named := func(name string) *tls.Certificate { return newCertificate(t, pkix.Name{CommonName: name}) }
				check("with nothing", nil, refused)
				check("with a bad certificate", named("mallory"), refused)
				check("with all rights but these", named("else"), alien)
				for _, sub := range e.needs {
					check(fmt.Sprintf("with the right to %s alone", sub), named("by-"+sub), e.want)
				}
			})
		})
	}
}

// watchfulRuntime fails the test when a stream is asked for.
type watchfulRuntime struct{ t *testing.T }

func (r watchfulRuntime) Exec(_ context.Context, q *runtimeapi.ExecRequest) (string, error) {
	r.t.Errorf("exec in %q", q.ContainerId)
	return "", errors.New("no")
}

func (r watchfulRuntime) CheckpointContainer(_ context.Context, q *runtimeapi.CheckpointContainerRequest) error {
	r.t.Errorf("checkpoint of %q at %s", q.ContainerId, q.Location)
	return errors.New("no")
}

func (r watchfulRuntime) Attach(_ context.Context, q *runtimeapi.AttachRequest) (string, error) {
	r.t.Errorf("attach to %q", q.ContainerId)
	return "", errors.New("no")
}

func (r watchfulRuntime) PortForward(_ context.Context, q *runtimeapi.PortForwardRequest) (string, error) {
	r.t.Errorf("ports of %q", q.PodSandboxId)
	return "", errors.New("no")
}

func (r watchfulRuntime) ExecSync(_ context.Context, q *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	r.t.Errorf("run in %q", q.ContainerId)
	return nil, errors.New("no")
}

// No path parameter leads out of what it names, however it is written: no file is asked for, no
// container entered.
func TestTraversal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := wholeNode(t)
		cfg.Handlers.Streams.Runtime = watchfulRuntime{t}
		cfg.Handlers.Logs = func(uid pod.UID, id pod.ContainerID) (string, error) {
			t.Errorf("the log of %q of pod %q", id, uid)
			return "/etc/passwd", nil
		}
		k := serveKubeletWith(t, cfg, server.Kubelet{
			Authentication: server.Authentication{Anonymous: true}, Checkpoints: server.Checkpoints{Runtime: watchfulRuntime{t}, Dir: t.TempDir()},
		})
		via := k.client(nil)
		defer via.CloseIdleConnections()
		attempts := []string{
			"..",
			".",
			"../../../etc/passwd",
			"%2e%2e",
			"%2E",
			"..%2f..%2f..%2fetc%2fpasswd",
			"%2e%2e%2f%2e%2e%2fetc%2fpasswd",
			"%2fetc%2fpasswd",
			"web%2f..%2f..",
			"..%5c..%5cetc%5cpasswd",
			"%252e%252e%252fetc%252fpasswd",
			"..%00",
			"main%00.log",
			"%c0%ae%c0%ae",
			"....",
			"~root",
			"*",
			"main%0a",
			"%20",
		}
		for _, p := range []struct{ method, before, after string }{
			{"GET", "/containerLogs/", "/web/main"},
			{"GET", "/containerLogs/default/", "/main"},
			{"GET", "/containerLogs/default/web/", ""},
			{"POST", "/exec/", "/web/main?command=ls&output=1"},
			{"POST", "/exec/default/", "/main?command=ls&output=1"},
			{"POST", "/exec/default/web/", "?command=ls&output=1"},
			{"POST", "/exec/default/web/", "/main?command=ls&output=1"},
			{"POST", "/attach/", "/web/main?output=1"},
			{"POST", "/attach/default/", "/main?output=1"},
			{"POST", "/attach/default/web/", "?output=1"},
			{"POST", "/attach/default/web/", "/main?output=1"},
			{"POST", "/run/", "/web/main?cmd=ls"},
			{"POST", "/run/default/", "/main?cmd=ls"},
			{"POST", "/run/default/web/", "?cmd=ls"},
			{"POST", "/run/default/web/", "/main?cmd=ls"},
			{"POST", "/portForward/", "/web"},
			{"POST", "/portForward/default/", ""},
			{"POST", "/portForward/default/web/", ""},
			{"GET", "/healthz/", ""},
			{"GET", "/metrics/x/", ""},
			{"GET", "/stats/summary/x/", ""},
			{"POST", "/checkpoint/", "/web/main"},
			{"POST", "/checkpoint/default/", "/main"},
			{"POST", "/checkpoint/default/web/", ""},
			{"GET", "/debug/pprof/", ""},
			{"GET", "/logs/", ""},
			{"GET", "/logs/a.log/", ""},
		} {
			for _, a := range attempts {
				if got := k.status(via, p.method, p.before+a+p.after); got != http.StatusNotFound {
					t.Errorf("%s %s%s%s: got %d, want 404", p.method, p.before, a, p.after, got)
				}
			}
		}
	})
}

// A path that begins like a harmless one is not a way to a stream: with every right but that to
// create, no container is entered.
func TestPathsInDisguise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reviewer := &apiServer{allowed: map[string]bool{}}
		for _, sub := range nodeSubresources {
			for _, verb := range verbs {
				reviewer.allowed["system:anonymous "+verb+" "+sub] = verb+" "+sub != "create proxy"
			}
		}
		cfg := wholeNode(t)
		cfg.Handlers.Streams.Runtime = watchfulRuntime{t}
		k := serveKubeletWith(t, cfg, server.Kubelet{
			Authentication: server.Authentication{Anonymous: true},
			Authorization:  server.Authorization{Mode: server.Webhook, Reviewer: reviewer},
		})
		via := k.client(nil)
		defer via.CloseIdleConnections()
		const target = "exec/default/web/main?command=ls&output=1"
		for _, c := range []struct {
			method, path string
			want         int
		}{
			{"GET", "/" + target, 403},
			{"GET", "/%65xec/default/web/main?command=ls&output=1", 403},
			{"GET", "//" + target, 404},
			{"GET", "/./" + target, 404},
			{"GET", "/%2e/" + target, 404},
			{"GET", "/%2f" + target, 404},
			{"GET", "/pods/../" + target, 404},
			{"GET", "/pods%2f..%2f" + target, 404},
			{"GET", "/pods/%2e%2e/" + target, 404},
			{"GET", "/exec%2fdefault%2fweb%2fmain?command=ls&output=1", 403},
			{"GET", "/EXEC/default/web/main?command=ls&output=1", 404},
			{"POST", "/metrics/../" + target, 404},
			{"POST", "//" + target, 403},
			{"CONNECT", "//" + target, 403},
		} {
			if got := k.status(via, c.method, c.path); got != c.want {
				t.Errorf("%s %s: got %d, want %d", c.method, c.path, got, c.want)
			}
		}
	})
}
