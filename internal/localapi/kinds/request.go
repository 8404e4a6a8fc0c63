package kinds

import (
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Request is what a request asks, as the rules of access and the parts of the server see it
// (kubernetes.io/docs/reference/access-authn-authz/authorization, "Determine the request verb").
type Request struct {
	// Verb is get, list, watch, create, update, patch, delete or deletecollection; for a path that
	// names no resource it is the method in lower case.
	Verb string
	// Path is that of the request, cleaned of nothing.
	Path string
	// Resource is the plural; "" if the path names no resource.
	schema.GroupVersion
	Resource    string
	Subresource string // with what follows it in the path: "status", "proxy/metrics"
	Namespace   string // "" is all, or none
	Name        string // "" is all
}

// NamesResource reports whether the path is that of a resource, be it known or not.
func (r Request) NamesResource() bool { return r.Resource != "" }

// Kind is the kind that the request names; nil if the local API has none.
func (r Request) Kind() *Kind { return Find(r.Group, r.GroupVersion.Version, r.Resource) }

// verbs of requests, by method; those of GET and DELETE have another for many objects.
var verbs = map[string]string{
	http.MethodGet: "get", http.MethodHead: "get", http.MethodPost: "create", http.MethodPut: "update",
	http.MethodPatch: "patch", http.MethodDelete: "delete",
}

// Read reads method, path and query of a request.
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
	// Old paths of watches: /api/v1/watch/…
	watch := parts[0] == "watch" && len(parts) > 1
	if watch {
		parts = parts[1:]
	}
	if parts[0] == "namespaces" && len(parts) > 1 {
		q.Namespace = parts[1]
		// What follows a namespace is a resource in it, but for what a namespace itself has.
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

// ofMany is the verb of a request for many objects.
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

// watches reads the parameter as kube-apiserver does: what is not false is true.
func watches(r *http.Request) bool {
	text, ok := r.URL.Query()["watch"]
	return ok && text[0] != "0" && !strings.EqualFold(text[0], "false")
}
