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

// Answers are the sources of responses that come from the agent rather than from objects.
type Answers struct {
	// Node serves the node API without authorization.
	Node http.Handler
	// NodeProxy serves the part of the node API that clients may read by nodes/NAME/proxy, without
	// authorization; nil serves nothing.
	NodeProxy http.Handler
	// Usage reads the CPU and memory usage of the node and its pods since the previous call.
	Usage func(context.Context) (*summary.Summary, error)
	// Explain returns an explanation of the pods of a name, as a value that encodes to JSON; false
	// if there is none.
	Explain func(ctx context.Context, namespace, name string) (any, bool)
	// Pulls is read.Config.Pulls.
	Pulls func(context.Context) func(*v1.Pod) string
}

// mux routes authorized requests.
type mux struct{ read, pods, nodes, metrics, explain, admit http.Handler }

// newMux returns the mux over a store, on a node. admit serves what is not a read.
func newMux(a Answers, node string, s *store.Store, admit http.Handler, o *objectErrors) mux {
	return mux{
		read: read.New(read.Config{Store: s, Next: admit, Pulls: a.Pulls, Undecodable: o.record, Log: o.log}), pods: podproxy.New(s, a.Node),
		nodes: nodeproxy.New(s, node, a.NodeProxy), metrics: podmetrics.New(s, a.Usage), explain: explainer(a.Explain), admit: admit,
	}
}

// readable are the subresources that return the whole object.
var readable = []string{"", "ephemeralcontainers", "resize", "status"}

// reviews are the groups with resources that are not stored.
var reviews = []string{"authentication.k8s.io", "authorization.k8s.io"}

// metricsPath is where kube-apiserver serves its metrics. It has none here. The API writer is not
// started for it: a client that scrapes the path would keep it running.
const metricsPath = "/metrics"

func isRead(q kinds.Request) bool { return slices.Contains([]string{"get", "list", "watch"}, q.Verb) }

func isNodeProxy(r *http.Request) bool {
	_, ok := kinds.ReadNodeProxy(r)
	return ok
}

func (m mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := kinds.Read(r)
	switch {
	case q.Path == "/healthz" || q.Path == "/livez" || q.Path == "/readyz":
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok")) // a client that has disconnected needs no response
	case q.Path == metricsPath:
		kinds.Fail(w, r, apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "", 0, false))
	case q.Path == podmetrics.Prefix || strings.HasPrefix(q.Path, podmetrics.Prefix+"/"):
		m.metrics.ServeHTTP(w, r)
	case q.Path == kinds.Berth.Path() || strings.HasPrefix(q.Path, kinds.Berth.Path()+"/"):
		m.explain.ServeHTTP(w, r)
	case q.Kind() == nil && q.NamesResource() && isRead(q) && !slices.Contains(reviews, q.Group):
		m.read.ServeHTTP(w, r) // it does not exist, which needs no API writer
	case q.Kind() == nil:
		m.admit.ServeHTTP(w, r)
	case q.Resource == "pods" && slices.Contains(podproxy.Subresources, q.Subresource):
		m.pods.ServeHTTP(w, r)
	case isNodeProxy(r):
		m.nodes.ServeHTTP(w, r)
	case isRead(q) && slices.Contains(readable, q.Subresource):
		m.read.ServeHTTP(w, r)
	default:
		m.admit.ServeHTTP(w, r)
	}
}
