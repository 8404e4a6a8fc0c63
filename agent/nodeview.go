package agent

import (
	"context"
	"net/http"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"berth/internal/api/server"
	"berth/internal/explain"
	"berth/internal/localapi"
	"berth/internal/localapi/apiserver"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/manifests"
	"berth/internal/localapi/nodeview"
	"berth/internal/observe/stats"
	"berth/internal/runtime/embedded"
)

// writeElsewhere names, by mode, where users change what a node view shows.
var writeElsewhere = map[mode]string{
	runMode:        `change the manifests, or start the agent without --local-api=false`,
	standaloneMode: "change the manifests of its static pods",
	memberMode:     "write to the API server of its cluster",
}

// newNodeView creates the read-only view of this node for kubectl.
func newNodeView(a *Agent) *localapi.View {
	write := writeElsewhere[a.deps.settings.mode]
	if a.deps.cfg.LocalAPI != nil {
		write = `"berth check" says why the local API does not listen on a port`
	}
	return localapi.NewView(localapi.ViewConfig{
		RunDir: a.deps.cfg.RunDir, NodeName: a.deps.cfg.NodeName, Write: write, BesideAPI: a.deps.cfg.LocalAPI != nil, Answers: a.answers(),
		Source: nodeview.Source{
			Pods: a.usage.view.List, Pod: a.usage.view.Get, Subscribe: a.deps.stores.status.Subscribe, Events: a.deps.events,
			Refused: func() (pods []*v1.Pod) {
				for _, o := range manifests.RejectedPods(a.desired.source.Problems()) {
					pods = append(pods, o.Object.(*v1.Pod))
				}
				return pods
			},
			Node: a.node.node.Describe, NodeChanged: a.node.node.Subscribe,
		},
		Documents: documentsInside, Closed: a.deps.cfg.AtRest, Log: a.deps.cfg.Log,
	})
}

// openView opens the view, unless a local API has a port.
func (a *Agent) openView(ctx context.Context) error {
	if a.deps.api.local != nil && a.deps.api.local.hasPort() {
		return server.ErrLocalAPI
	}
	return a.usage.nodeView.Open(ctx)
}

// answers returns the agent's handlers for clients of the Kubernetes API.
func (a *Agent) answers() localapi.Answers {
	return localapi.Answers{
		// The server is created later.
		Node:      http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.listeners.server.Containers().ServeHTTP(w, r) }),
		NodeProxy: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.listeners.server.Proxied().ServeHTTP(w, r) }),
		Usage: func(ctx context.Context) (*summary.Summary, error) {
			return a.usage.stats.Summary(ctx, stats.CPUAndMemory)
		},
		Pulls: a.imagePulls().marks,
		Explain: func(ctx context.Context, namespace, name string) (any, bool) {
			h := a.Handlers()
			e, ok := h.ExplainPod(ctx, namespace, name)
			return server.PublishedExplanation{TypeMeta: metav1.TypeMeta{Kind: "Explanation", APIVersion: kinds.Berth.String()}, Report: e}, ok
		},
	}
}

// documentsInside returns the embedded OpenAPI documents, nil if there are none.
func documentsInside() (*apiserver.Documents, error) {
	inside := embedded.APIDocuments()
	if inside == "" {
		return nil, nil
	}
	return apiserver.ReadDocuments(strings.NewReader(inside), int64(len(inside)))
}

// marks lists the current pulls and returns a function that describes a pod's.
func (p imagePulls) marks(ctx context.Context) func(*v1.Pod) string {
	under := p.list(ctx)
	return func(of *v1.Pod) string {
		return explain.PullMark(explain.PullsOf(under, p.pods.TranslateUID(of.UID))) // clients use the mirror's UID
	}
}
