package nodeauthz

import (
	"net/http"
	"strings"
)

// Attributes are the permission that a request requires: a verb on a subresource of the Node. Any
// one of the subresources suffices.
type Attributes struct {
	Verb         string
	Subresources []string
}

// Compute returns the permission for a method on a path of the node API (Kubelet authorization;
// KEP-2862 for the finer names, which are tried before proxy).
func Compute(method, path string) Attributes {
	a := Attributes{Verb: verbOf(method), Subresources: []string{"proxy"}}
	part, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch part {
	case "stats", "metrics", "checkpoint", "statusz":
		a.Subresources = []string{part}
	case "logs":
		a.Subresources = []string{"log"}
	case "pods", "runningpods":
		a.Subresources = []string{"pods", "proxy"}
	case "healthz", "configz":
		a.Subresources = []string{part, "proxy"}
	case "flagz":
		a.Subresources = []string{"configz", "proxy"}
	case "exec", "attach", "run", "portForward":
		// Entering a container changes what runs there, even by GET, which a WebSocket starts with.
		a.Verb = "create"
	}
	return a
}

// verbOf returns the API verb of a method.
func verbOf(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead:
		return "get"
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	default:
		return "" // no rule can allow it
	}
}
