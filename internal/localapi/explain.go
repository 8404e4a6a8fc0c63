package localapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/internal/localapi/kinds"
)

// explainer serves the agent's own API group: pods/NAME/explain, and discovery.
type explainer func(ctx context.Context, namespace, name string) (any, bool)

// ServeHTTP serves requests whose path begins with that of kinds.Berth.
func (e explainer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := kinds.Read(r)
	switch strings.TrimSuffix(q.Path, "/") {
	case kinds.Berth.Path():
		kinds.Answer(w, r, http.StatusOK, kinds.Berth.Describe())
		return
	case "/apis/" + kinds.Berth.String():
		kinds.Answer(w, r, http.StatusOK, kinds.Berth.Resources())
		return
	}
	of := schema.GroupResource{Group: q.Group, Resource: q.Resource}
	switch {
	case q.GroupVersion != kinds.Berth.GroupVersion || q.Resource != "pods" || q.Subresource != "explain" || q.Name == "" || e == nil:
		kinds.Fail(w, r, apierrors.NewGenericServerResponse(http.StatusNotFound, q.Verb, of, q.Name, "", 0, true))
		return
	case q.Verb != "get":
		kinds.Fail(w, r, apierrors.NewMethodNotSupported(of, q.Verb))
		return
	}
	explanation, ok := e(r.Context(), q.Namespace, q.Name)
	if !ok {
		kinds.Fail(w, r, apierrors.NewNotFound(of, q.Name))
		return
	}
	text, err := json.Marshal(explanation)
	if err != nil {
		kinds.Fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(text, '\n')) // a client that has disconnected needs no response
}
