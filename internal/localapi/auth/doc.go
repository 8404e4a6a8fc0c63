// Package auth says who a client of the local API is, and what it may do.
//
//	request ──► who? ──► for whom? ──► how many already? ──► may it? ──► the API, or a review, or a token
//	            401      (Impersonate-)  429                    403
//
// A client is known by a certificate of the authority, by a token of a service account, or, on the
// unix socket, by being root. Nobody else is served. What a user may is one file of rules, which
// is read again when it has changed. The decision comes before anything reads the body. Requests
// that go on (watches, logs that are followed, exec) are ended when it would no longer be the same.
//
// Owns: the folder of the authority's keys (ca.pem, serving.pem, tokens.pem), the file of rules,
// the kubeconfigs that it prints.
// Reads: requests, the objects that tokens are bound to.
// Never: serves a request that it does not know the user of, writes a body or a secret to the log.
package auth
