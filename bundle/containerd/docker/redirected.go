// Package docker keeps credentials from servers that they are not for. The build puts this file
// into containerd's package of the same name (core/remotes/docker), which calls it (bundle.mk).
package docker

import "net/http"

// redirected reports whether a request is to another host than the one that was asked first.
// Containerd itself shows the password of a registry to any server that the registry sends it on to
// and that asks for one. Without it, such a server may still give tokens to everybody, as those
// behind registry.k8s.io do.
func redirected(req *http.Request) bool {
	first := req
	for first.Response != nil { // that of the redirect
		first = first.Response.Request
	}
	return first.URL.Host != req.URL.Host
}
