package kinds

import (
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Request holds the attributes of a request for authorization and routing
// (kubernetes.io/docs/reference/access-authn-authz/authorization, "Determine the request verb").
type Request struct {
	// Verb is get, list, watch, create, update, patch, delete or deletecollection; for a path that
	// names no resource it is the method in lower case.
	Verb string
	// Path is the request's path, not cleaned.
	Path string
	// Resource is the plural; "" if the path names no resource.
	schema.GroupVersion
	Resource    string
	Subresource string // with the rest of the path: "status", "proxy/metrics"
	Namespace   string // "" is all, or none
	Name        string // "" is all
}

// NamesResource reports whether the path names a resource, known or not.
func (r Request) NamesResource() bool { return r.Resource != "" }

// Kind returns the kind that the request names; nil if the local API does not have it.
func (r Request) Kind() *Kind { return Find(r.Group, r.GroupVersion.Version, r.Resource) }

// verbs maps methods to verbs. ofMany changes those of GET and DELETE for collections.
var verbs = map[string]string{
	http.MethodGet: "get", http.MethodHead: "get", http.MethodPost: "create", http.MethodPut: "update",
	http.MethodPatch: "patch", http.MethodDelete: "delete",
}

// Read parses method, path and query of a request.
func Read(r *http.Request) Request {
	q := Request{Verb: strings.ToLower(r.Method), Path: r.URL.Path}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		q.GroupVersion, parts = schema.GroupVersion{Version: parts[1]}, parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		q.GroupVersion, parts = schema.GroupVersion{Group: parts[1], Version: parts[2]}, parts[3:]
	default:
		return q
	}
	verb, ok := verbs[r.Method]
	if !ok {
		verb = ""
	}
	q.Verb = verb
	// Deprecated watch paths: /api/v1/watch/…
	watch := parts[0] == "watch" && len(parts) > 1
	if watch {
		parts = parts[1:]
	}
	if parts[0] == "namespaces" && len(parts) > 1 {
		q.Namespace = parts[1]
		// After a namespace's name comes a resource, unless it is a subresource of the namespace.
		if len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
			parts = parts[2:]
		}
	}
	q.Resource = parts[0]
	if len(parts) > 1 {
		q.Name = parts[1]
	}
	q.Subresource = strings.Join(parts[min(2, len(parts)):], "/")
	if watch {
		q.Verb = "watch"
		return q
	}
	if q.Name == "" {
		q.Verb = ofMany(q.Verb, r)
	}
	return q
}

// ofMany returns the verb of a request for a collection.
func ofMany(verb string, r *http.Request) string {
	switch {
	case verb == "get" && watches(r):
		return "watch"
	case verb == "get":
		return "list"
	case verb == "delete":
		return "deletecollection"
	}
	return verb
}

// watches parses the parameter as kube-apiserver does: all but false and 0 is true.
func watches(r *http.Request) bool {
	text, ok := r.URL.Query()["watch"]
	return ok && text[0] != "0" && !strings.EqualFold(text[0], "false")
}
