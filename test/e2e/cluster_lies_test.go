//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"berth/internal/cluster/kube"
)

// liar is a proxy before the API server, which says of pods what it is told to. It has the node's
// identity, and the agent has none.
type liar struct {
	next http.Handler

	mu    sync.Mutex
	lie   http.HandlerFunc   // guarded by mu; nil: the truth
	ctx   context.Context    // guarded by mu; of the streams that are open
	close context.CancelFunc // guarded by mu

	told, sent atomic.Int64 // lies, and bytes of them
}

// viaLiar has agents that are started from now on reach the API server through a proxy.
func (c *cluster) viaLiar() *liar {
	c.t.Helper()
	config, err := kube.LoadKubeconfig(c.plane.dir + "/node-" + c.name + ".kubeconfig")
	if err != nil {
		c.t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		c.t.Fatal(err)
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		c.t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport, FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	l := &liar{next: proxy}
	l.ctx, l.close = context.WithCancel(c.ctx)
	server := httptest.NewServer(l)
	c.t.Cleanup(func() {
		server.CloseClientConnections() // those that watch
		server.Close()
	})
	path := c.place.Dir + "/liar.kubeconfig"
	kubeconfig := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n", server.URL)
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.identity = []string{"--kubeconfig", path}
	return l
}

// say answers with the lie whoever lists and watches pods, from now on, and ends what is watched;
// nil is the truth.
func (l *liar) say(lie http.HandlerFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.close()
	l.ctx, l.close = context.WithCancel(context.Background())
	l.lie = lie
	l.told.Store(0)
	l.sent.Store(0)
}

func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	lie, until := l.lie, l.ctx
	l.mu.Unlock()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if r.URL.Path != "/api/v1/pods" {
		l.next.ServeHTTP(w, r)
		return
	}
	defer context.AfterFunc(until, cancel)()
	if lie == nil {
		l.next.ServeHTTP(w, r.WithContext(ctx))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	lie(w, r)
	l.told.Add(1)
}

// words answers lists and watches with the same.
func words(list, stream string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		said := list
		if r.URL.Query().Get("watch") != "" {
			said = stream
		}
		_, _ = io.WriteString(w, said) // the agent may have gone away
	}
}

// pour begins an object and never ends it.
func (l *liar) pour(w http.ResponseWriter, r *http.Request) {
	head, piece := `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"`, strings.Repeat("9", 64<<10)
	if r.URL.Query().Get("watch") != "" {
		head = `{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"`
	}
	for next := head; ; next = piece {
		n, err := io.WriteString(w, next)
		l.sent.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// A proxy that mixes up the answers of the API server, or floods the agent, ends no pod, and the
// agent goes on when the right answers come back.
func TestClusterLies(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	l := c.viaLiar()
	c.startMember()
	c.create(c.helloPod("web", "serve"))
	before := c.awaitAPIReady("web")
	began, bodies := course(before), c.bodies(before)
	const endOfList = `{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}}`
	var once atomic.Bool
	for name, lie := range map[string]http.HandlerFunc{
		"another kind": words(`{"kind":"SecretList","apiVersion":"v1","metadata":{"resourceVersion":"99999999"},"items":[]}`,
			`{"type":"DELETED","object":{"kind":"Secret","apiVersion":"v1","metadata":{"name":"web","namespace":"`+c.namespace+`","resourceVersion":"9"}}}`),
		"an empty object": words(`{}`, `{}`),
		"no version":      words(`{"kind":"PodList","apiVersion":"v1","items":[]}`, strings.Replace(endOfList, `"resourceVersion":"1",`, "", 1)),
		"one list of none": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("sendInitialEvents") != "" && once.CompareAndSwap(false, true) {
				_, _ = io.WriteString(w, endOfList)
				return
			}
			l.next.ServeHTTP(w, r)
		},
		"without an end": l.pour,
	} {
		l.say(lie)
		c.awaitWithin(name+" to be told", func() bool { return l.told.Load() >= 2 || once.Load() && name == "one list of none" })
		told := l.told.Load() + 1 // one may be under way
		t.Logf("%s: told %d times, %d MiB", name, told-1, l.sent.Load()>>20)
		// 16 MiB of an event, 64 of a list, and what the kernel holds of each.
		if sent, most := l.sent.Load(), told*(72<<20); sent > most {
			t.Errorf("%s: the agent took %d bytes, want at most %d", name, sent, most)
		}
		c.stays(name+": the pod goes on as it was", 3*time.Second, func() bool { // pods that end have 2 s at the least
			now, _ := c.apiPods()
			return cmp.Diff(began, course(now)) == "" && cmp.Diff(bodies, c.bodies(now)) == ""
		})
	}
	l.say(nil)
	c.create(c.helloPod("younger", "serve"))
	after := c.awaitAPIReady("web", "younger")
	for _, p := range after {
		if p.Name == "web" && cmp.Diff(began, course(pods{p})) != "" {
			t.Errorf("the pod has changed: %s", cmp.Diff(began, course(pods{p})))
		}
	}
}
