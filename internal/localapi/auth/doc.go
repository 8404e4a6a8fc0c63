// Package auth authenticates, authorizes and rate-limits the requests to the local API.
//
//	request ──► authenticate ──► impersonate ──► limit ──► authorize ──► the API, review or token
//	            401              (Impersonate-)  429       403
//
// A client authenticates by a certificate of the authority, by a service account token or, on the
// unix socket, as root. Anonymous requests are rejected. One file of rules, reloaded when it
// changes, authorizes users. The decision precedes any read of the body. Long-running requests
// (watches, followed logs, exec) are ended when they would no longer be authorized.
//
// Owns: the directory of the authority's keys (ca.pem, serving.pem, tokens.pem), the rules file,
// the kubeconfigs that it writes.
// Reads: requests, the objects that tokens are bound to.
// Never: serves a request without a user, logs a body or a secret.
package auth
