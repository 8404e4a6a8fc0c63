package localapi

import (
	"context"
	"net/http"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/nodeproxy"
	"berth/internal/localapi/podmetrics"
	"berth/internal/localapi/podproxy"
	"berth/internal/localapi/read"
	"berth/internal/localapi/store"
)

// Answers is what of an answer comes from the agent, and not from objects.
type Answers struct {
	// Node serves the node API to everybody who reaches it.
	Node http.Handler
	// NodeProxy serves what clients may read of the node API by nodes/NAME/proxy, without
	// authorization; nil: nothing.
	NodeProxy http.Handler
	// Usage reads CPU and memory of node and pods, over the time since it was called last.
	Usage func(context.Context) (*summary.Summary, error)
	// Explain returns what is known of the pods of a name and why they are so, as something that
	// JSON can be made of; false: nothing is.
	Explain func(ctx context.Context, namespace, name string) (any, bool)
	// Pulls is read.Config.Pulls.
	Pulls func(context.Context) func(*v1.Pod) string
}

// parts answer a client that may ask: each what is its own.
type parts struct{ reads, pods, nodes, usage, explain, judge http.Handler }

// newParts returns the parts over a store, on a node. judge answers what is no read.
func newParts(a Answers, node string, s *store.Store, judge http.Handler, o *oddities) parts {
	return parts{
		reads: read.New(read.Config{Store: s, Next: judge, Pulls: a.Pulls, Undecodable: o.undecodable, Log: o.log}), pods: podproxy.New(s, a.Node),
		nodes: nodeproxy.New(s, node, a.NodeProxy), usage: podmetrics.New(s, a.Usage), explain: explainer(a.Explain), judge: judge,
	}
}

// readable are the subresources whose object is the whole one.
var readable = []string{"", "ephemeralcontainers", "resize", "status"}

// reviews are the groups that have resources and no kinds: what is created in them is not kept.
var reviews = []string{"authentication.k8s.io", "authorization.k8s.io"}

// metricsPath is where kube-apiserver has metrics of itself. No child is started to say that there
// are none: who scrapes the path would keep it from ending.
const metricsPath = "/metrics"

func isRead(q kinds.Request) bool { return slices.Contains([]string{"get", "list", "watch"}, q.Verb) }

func isNodeProxy(r *http.Request) bool {
	_, ok := kinds.ReadNodeProxy(r)
	return ok
}

func (p parts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := kinds.Read(r)
	switch {
	case q.Path == "/healthz" || q.Path == "/livez" || q.Path == "/readyz":
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok")) // a client that has gone needs no answer
	case q.Path == metricsPath:
		kinds.Fail(w, r, apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "", 0, false))
	case q.Path == podmetrics.Prefix || strings.HasPrefix(q.Path, podmetrics.Prefix+"/"):
		p.usage.ServeHTTP(w, r)
	case q.Path == kinds.Berth.Path() || strings.HasPrefix(q.Path, kinds.Berth.Path()+"/"):
		p.explain.ServeHTTP(w, r)
	case q.Kind() == nil && q.NamesResource() && isRead(q) && !slices.Contains(reviews, q.Group):
		p.reads.ServeHTTP(w, r) // it is not there, and no child need say so
	case q.Kind() == nil:
		p.judge.ServeHTTP(w, r)
	case q.Resource == "pods" && slices.Contains(podproxy.Subresources, q.Subresource):
		p.pods.ServeHTTP(w, r)
	case isNodeProxy(r):
		p.nodes.ServeHTTP(w, r)
	case isRead(q) && slices.Contains(readable, q.Subresource):
		p.reads.ServeHTTP(w, r)
	default:
		p.judge.ServeHTTP(w, r)
	}
}
