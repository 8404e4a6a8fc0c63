package kinds

import (
	"net/http"
	"strings"
)

// NodeProxy is a request that is passed on to the node API.
type NodeProxy struct {
	// Node is the element of the path that names the node: NAME, NAME:PORT or SCHEME:NAME:PORT.
	Node string
	// Path is that of the request to the node API. It begins with a slash.
	Path string
}

// ReadNodeProxy reads a request to /api/v1/nodes/NODE/proxy/PATH; ok is false if it is to another
// path. Authorization and the proxy both read it here, so that what is authorized is what is
// requested.
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
