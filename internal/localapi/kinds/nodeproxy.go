package kinds

import (
	"net/http"
	"strings"
)

// NodeProxy is a request to proxy to the node API.
type NodeProxy struct {
	// Node is the path element that names the node: NAME, NAME:PORT or SCHEME:NAME:PORT.
	Node string
	// Path is the path in the node API. It begins with a slash.
	Path string
}

// ReadNodeProxy parses a request to /api/v1/nodes/NODE/proxy/PATH; ok is false for other paths.
// Both authorization and the proxy use it, so that they agree on the request.
func ReadNodeProxy(r *http.Request) (_ NodeProxy, ok bool) {
	rest, ok := strings.CutPrefix(r.URL.Path, "/api/v1/nodes/")
	if !ok {
		return NodeProxy{}, false
	}
	node, rest, ok := strings.Cut(rest, "/")
	if !ok || node == "" {
		return NodeProxy{}, false
	}
	path, ok := strings.CutPrefix(rest, "proxy")
	switch {
	case !ok || path != "" && path[0] != '/':
		return NodeProxy{}, false
	case path == "":
		path = "/"
	}
	return NodeProxy{Node: node, Path: path}, true
}
