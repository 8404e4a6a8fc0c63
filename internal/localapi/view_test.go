package localapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"berth/internal/localapi/apiserver"
	"berth/internal/localapi/nodeview"
	"berth/internal/pod"
	"berth/internal/record/events"
)

// viewed is a node with a view, in a run directory.
type viewed struct {
	*testing.T
	view    *View
	runDir  string
	events  *events.Store
	changed pod.Publisher[pod.UID]
	end     func()

	mu     sync.Mutex
	pod    *v1.Pod        // guarded by mu; the only one; nil is none
	node   error          // guarded by mu; why it is not known
	timers chan time.Time // guarded by mu; of the newest wait
	closed int            // guarded by mu
}

func newViewed(t *testing.T) *viewed {
	t.Helper()
	n := &viewed{T: t, runDir: t.TempDir(), events: events.NewStore("kubelet", "n"), pod: viewedPod(v1.PodPending)}
	n.view = NewView(ViewConfig{
		RunDir: n.runDir, NodeName: "n", Write: "write elsewhere", Log: slog.New(slog.DiscardHandler),
		Source: nodeview.Source{
			Pods: n.pods, Subscribe: n.changed.Subscribe, Refused: func() []*v1.Pod { return nil }, Events: n.events,
			Pod: func(uid pod.UID) (*v1.Pod, bool) {
				all := n.pods()
				if len(all) == 0 || all[0].UID != uid {
					return nil, false
				}
				return all[0], true
			},
			Node: func(context.Context) (*v1.Node, error) {
				n.mu.Lock()
				defer n.mu.Unlock()
				return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, n.node
			},
			NodeChanged: (&pod.Publisher[string]{}).Subscribe,
		},
		Answers: Answers{
			Node:      http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "node API "+r.URL.Path) }),
			NodeProxy: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "node proxy "+r.RequestURI) }),
			Usage: func(context.Context) (*summary.Summary, error) {
				return nil, errors.New("nobody measures")
			},
			Explain: func(_ context.Context, namespace, name string) (any, bool) {
				return "why of " + namespace + "/" + name, name == "web"
			},
			Pulls: func(context.Context) func(*v1.Pod) string { return func(*v1.Pod) string { return " (pulling 7%)" } },
		},
		After: func(time.Duration) <-chan time.Time {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.timers = make(chan time.Time, 1)
			return n.timers
		},
		Closed: func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.closed++
		},
	})
	return n
}

func viewedPod(phase v1.PodPhase) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1"},
		Spec:       v1.PodSpec{NodeName: "n", Containers: []v1.Container{{Name: "main"}}}, Status: v1.PodStatus{Phase: phase},
	}
}

func (n *viewed) pods() []*v1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pod == nil {
		return nil
	}
	return []*v1.Pod{n.pod}
}

func (n *viewed) set(p *v1.Pod) {
	n.mu.Lock()
	n.pod = p
	n.mu.Unlock()
	n.changed.Publish("1")
}

// start runs the view until end is called, or the test ends.
func (n *viewed) start() {
	n.Helper()
	ctx, stop := context.WithCancel(n.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.view.Run(ctx) }()
	n.end = sync.OnceFunc(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			n.Errorf("it ended with %v", err)
		}
	})
	n.Cleanup(n.end)
}

// open opens the view, and returns how its kubeconfig reaches it.
func (n *viewed) open() (*rest.Config, *http.Client) {
	n.Helper()
	if err := n.view.Open(n.Context()); err != nil {
		n.Fatal(err)
	}
	path := filepath.Join(n.runDir, ViewDir, ViewKubeconfig)
	if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
		n.Fatalf("the kubeconfig: %v, %v", i, err)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		n.Fatal(err)
	}
	c, err := rest.HTTPClientFor(cfg)
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(c.CloseIdleConnections)
	return cfg, c
}

// ask sends a request, and returns the code and the body of its answer.
func (n *viewed) ask(c *http.Client, method, url, accept string) (int, string) {
	n.Helper()
	r, err := http.NewRequestWithContext(n.Context(), method, url, http.NoBody)
	if err != nil {
		n.Fatal(err)
	}
	r.Header.Set("Accept", accept)
	answer, err := c.Do(r)
	if err != nil {
		n.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		n.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

// await waits until what is so.
func (n *viewed) await(what string, is func() bool) {
	n.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); !is(); <-tick.C {
		if time.Now().After(end) {
			n.Fatalf("not %s after 10 s", what)
		}
	}
}

// fire has the time be over that the view waits for without a request, if it does.
func (n *viewed) fire() {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case n.timers <- time.Time{}:
	default:
	}
}

func (n *viewed) isThere() bool {
	_, err := os.Stat(filepath.Join(n.runDir, ViewDir))
	return err == nil
}

const asTable = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"

func TestViewAnswers(t *testing.T) {
	n := newViewed(t)
	n.events.Add(v1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web", UID: "1"}, v1.EventTypeNormal, "Pulling", "an image")
	n.start()
	cfg, c := n.open()
	for _, q := range []struct {
		request, accept string
		code            int
		want            string
	}{
		{"GET /api/v1/pods", "application/json", 200, `"name":"web"`},
		{"GET /api/v1/pods", asTable, 200, `"Pending (pulling 7%)"`},
		{"GET /api/v1/namespaces/default/pods/web", "application/json", 200, `"phase":"Pending"`},
		{"GET /api/v1/nodes/n", "application/json", 200, `"kind":"Node"`},
		{"GET /api/v1/nodes", asTable, 200, `"cells":["n","Unknown"`},
		{"GET /api/v1/namespaces", asTable, 200, `"cells":["default","Active","\u003cunknown\u003e"]`},
		{"GET /api/v1/events", "application/json", 200, `"reason":"Pulling"`},
		{"GET /apis/events.k8s.io/v1/events", "application/json", 200, `"note":"an image"`},
		{"GET /version", "application/json", 200, `"gitVersion":"v1.`},
		{"GET /healthz", "*/*", 200, "ok"},
		{"GET /api/v1/namespaces/default/pods/web/log", "*/*", 200, "node API /containerLogs/default/web/main"},
		{"POST /api/v1/namespaces/default/pods/web/exec?command=ls&container=main", "*/*", 200, "node API /exec/default/web/main"},
		{"GET /apis/metrics.k8s.io/v1beta1/pods", "application/json", 500, "nobody measures"},
		{"GET /apis/berth.dev", "application/json", 200, `"kind":"APIGroup"`},
		{"GET /apis/berth.dev/v1", "application/json", 200, `"name":"pods/explain"`},
		{"GET /apis/berth.dev/v1/namespaces/default/pods/web/explain", "application/json", 200, `"why of default/web"`},
		{"GET /apis/berth.dev/v1/namespaces/default/pods/db/explain", "application/json", 404, `pods.berth.dev \"db\" not found`},
		{"GET /apis/berth.dev/v1/namespaces/default/pods", "application/json", 404, `"reason":"NotFound"`},
		{"GET /apis/berth.dev/v2/namespaces/default/pods/web/explain", "application/json", 404, `"reason":"NotFound"`},
		// What a view has not is not there, and not empty.
		{"GET /api/v1/secrets", "application/json", 404, `"reason":"NotFound"`},
		{"GET /apis/storage.k8s.io/v1", "application/json", 404, `"reason":"NotFound"`},
		{"GET /apis/apps/v1/deployments", "application/json", 404, "404 page not found"},
		{"GET /openapi/v2", "application/json", 404, `"reason":"NotFound"`},
		{"GET /api/v1/namespaces/default/pods/web/nope", "application/json", 404, `"reason":"NotFound"`},
		{"GET /api/v1/nodes/n/proxy/pods", "application/json", 200, "node proxy /pods"},
		{"GET /api/v1/nodes/https:n:10250/proxy/stats/summary?only_cpu_and_memory=true", "application/json", 200, "node proxy /stats/summary?only_cpu_and_memory=true"},
		{"GET /api/v1/nodes/m/proxy/pods", "application/json", 404, `nodes \"m\" not found`},
		{"GET /api/v1/namespaces/default/nodes/n/proxy/pods", "application/json", 404, `"reason":"NotFound"`},
		{"GET /api/v1/watch/nodes/n/proxy/pods", "application/json", 404, `"reason":"NotFound"`},
		{"POST /api/v1/nodes/n/proxy/run/default/web/main?cmd=ls", "application/json", 403, "write elsewhere"},
		// What would change something is refused, and told where to go.
		{"DELETE /api/v1/namespaces/default/pods/web", "application/json", 403, `cannot delete resource \"pods\" in API group \"\" in the namespace \"default\": what the agent of node n serves here can only be read: write elsewhere`},
		{"POST /api/v1/namespaces/default/configmaps", "application/json", 403, "write elsewhere"},
		{"PUT /api/v1/namespaces/default/pods/web/status", "application/json", 403, "write elsewhere"},
		{"PATCH /api/v1/nodes/n", "application/json", 403, "write elsewhere"},
		{"POST /api/v1/namespaces/default/pods/web/eviction", "application/json", 403, "write elsewhere"},
		{"POST /api/v1/namespaces/default/serviceaccounts/default/token", "application/json", 403, "write elsewhere"},
	} {
		method, path, _ := strings.Cut(q.request, " ")
		if code, body := n.ask(c, method, cfg.Host+path, q.accept); code != q.code || !strings.Contains(body, q.want) {
			t.Errorf("%s: %d %s; want %d with %s", q.request, code, body, q.code, q.want)
		}
	}
	stranger, err := rest.HTTPClientFor(&rest.Config{Host: cfg.Host, TLSClientConfig: rest.TLSClientConfig{CAData: cfg.CAData}})
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.CloseIdleConnections()
	if code, _ := n.ask(stranger, "GET", cfg.Host+"/api/v1/pods", "application/json"); code != http.StatusUnauthorized {
		t.Errorf("somebody without a certificate is answered %d", code)
	}
}

// Clients find out what there is.
func TestViewDiscovery(t *testing.T) {
	n := newViewed(t)
	n.start()
	cfg, _ := n.open()
	d, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	groups, lists, err := d.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range lists {
		for _, r := range l.APIResources {
			got = append(got, l.GroupVersion+" "+r.Name+" "+strings.Join(r.Verbs, ","))
		}
	}
	want := "v1 pods get,list,watch; v1 pods/attach create,get; v1 pods/exec create,get; v1 pods/log get; v1 pods/portforward create,get; " +
		"v1 events get,list,watch; v1 namespaces get,list,watch; v1 nodes get,list,watch; v1 nodes/proxy get; events.k8s.io/v1 events get,list,watch; " +
		"metrics.k8s.io/v1beta1 nodes get,list; metrics.k8s.io/v1beta1 pods get,list; berth.dev/v1 pods/explain get"
	if strings.Join(got, "; ") != want || len(groups) != 4 {
		t.Errorf("%d groups: %s\nwant %s", len(groups), strings.Join(got, "; "), want)
	}
}

// A view follows what changes, stays while somebody watches, and ends when nobody has asked for a
// while. Then nothing of it is left, and the next one knows nobody that this one knew.
func TestViewEndsWhenNobodyUsesIt(t *testing.T) {
	n := newViewed(t)
	for _, stale := range []string{filepath.Join(n.runDir, ViewDir, "of-a-killed-agent"), filepath.Join(n.runDir, Kubeconfig)} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(stale), 0o700), os.WriteFile(stale, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	n.start()
	n.await("without what was left", func() bool {
		_, err := os.Stat(filepath.Join(n.runDir, Kubeconfig))
		return !n.isThere() && errors.Is(err, os.ErrNotExist)
	})
	cfg, c := n.open()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.Host+"/api/v1/pods?watch=1", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	next := func() string {
		t.Helper()
		var e struct {
			Type   string
			Object v1.Pod
		}
		if !lines.Scan() {
			t.Fatalf("the watch broke off: %v", lines.Err())
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		return e.Type + " " + string(e.Object.Status.Phase)
	}
	if got := next(); got != "ADDED Pending" {
		t.Errorf("the watch begins with %s", got)
	}
	n.fire()
	n.set(viewedPod(v1.PodRunning))
	if got := next(); got != "MODIFIED Running" {
		t.Errorf("then it says %s", got)
	}
	n.set(nil)
	if got := next(); got != "DELETED Running" {
		t.Errorf("at last it says %s", got)
	}
	if err := n.view.Open(t.Context()); err != nil || !n.isThere() {
		t.Errorf("it is open: %v", err)
	}

	leave()
	n.await("closed", func() bool { n.fire(); return !n.isThere() })
	n.await("told", func() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.closed == 1 })
	if answer, err := c.Get(cfg.Host + "/healthz"); err == nil {
		answer.Body.Close()
		t.Error("the port is open")
	}

	again, _ := n.open()
	again.TLSClientConfig.CertData, again.TLSClientConfig.KeyData = cfg.CertData, cfg.KeyData
	old, err := rest.HTTPClientFor(again)
	if err != nil {
		t.Fatal(err)
	}
	defer old.CloseIdleConnections()
	if code, _ := n.ask(old, "GET", again.Host+"/healthz", "*/*"); code != http.StatusUnauthorized {
		t.Errorf("the certificate of a view that was is answered %d", code)
	}
	n.end()
	if n.isThere() {
		t.Error("the agent has ended, and the folder of the view is there")
	}
}

// A view that cannot be had says why, and is tried again. A Node that is not known keeps nobody
// from the pods.
func TestViewThatCannotBeHad(t *testing.T) {
	n := newViewed(t)
	n.node = errors.New("the machine is about to be read")
	damaged := errors.New("they are damaged")
	n.view.cfg.Documents = func() (*apiserver.Documents, error) {
		err := damaged
		damaged = nil
		return nil, err
	}
	n.start()
	if err := n.view.Open(t.Context()); err == nil || err.Error() != "view of the node: they are damaged" || n.isThere() {
		t.Errorf("without documents: %v", err)
	}
	cfg, c := n.open()
	if code, body := n.ask(c, "GET", cfg.Host+"/api/v1/nodes", "application/json"); code != http.StatusServiceUnavailable || !strings.Contains(body, "about to be read") {
		t.Errorf("nodes: %d %s", code, body)
	}
	if code, _ := n.ask(c, "GET", cfg.Host+"/api/v1/pods", "application/json"); code != http.StatusOK {
		t.Errorf("pods: %d", code)
	}
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("gone"))
	n.end()
	if err := n.view.Open(ended); err == nil || err.Error() != "gone" {
		t.Errorf("an agent that has ended says %v", err)
	}
}
