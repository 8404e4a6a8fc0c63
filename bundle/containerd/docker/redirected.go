// Package docker protects registry credentials from other servers. The build puts this file into
// containerd's package of the same name (core/remotes/docker), which calls it (bundle/patches).
package docker

import "net/http"

// redirected reports whether a request goes to another host than the original one. Upstream
// containerd sends the registry's password to any server that the registry redirects to and that
// requests it. Without the password, such a server may still issue anonymous tokens, as those
// behind registry.k8s.io do.
func redirected(req *http.Request) bool {
	first := req
	for first.Response != nil { // the response that redirected
		first = first.Response.Request
	}
	return first.URL.Host != req.URL.Host
}
