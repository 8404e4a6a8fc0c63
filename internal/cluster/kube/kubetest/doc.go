// Package kubetest is a stateful in-memory API server, and a contract suite for it and a real
// kube-apiserver.
//
// Owns: Server (the fake: an http.Handler, and a transport without sockets), Fault (fault
// injection), RunContract (the behaviour that both servers must have).
// Reads: the requests of its clients, the clock (which is virtual in a testing/synctest bubble).
// Never: opens a socket, holds a lock while it waits or writes.
//
// The fake stores the objects that a node uses and supports JSON and protobuf. Like the real
// server, it has:
//
//   - resource versions: conflicts on update, watches from a version, 410 Gone for a compacted one;
//   - label selectors, and the field selectors of the real server for each kind; others are
//     rejected;
//   - bookmarks each minute, and streaming lists that end with the bookmark
//     k8s.io/initial-events-end;
//   - strategic merge, JSON merge and JSON patches; a UID in a patch is a precondition (422
//     Invalid, not a conflict);
//   - writes without a change, which make no event; generations of pods;
//   - a status that only the status subresource changes, which does not change the spec;
//   - deletion with grace period, preconditions and finalizers: a pod that is bound to a node stays
//     until it is deleted with grace period 0;
//   - the subresources binding, eviction (always granted) and token, and the approval of
//     certificate signing requests.
//
// The list lacks in its contract test has the missing features, with reasons: validation beyond
// names, admission, discovery, apply, dry run, tables, pages of one revision, protection of
// namespaces. Outside of the contract, it has no quota and no authentication (Authorization is
// recorded and ignored).
//
// A clause of the contract tests either typed clients, in JSON and in protobuf, or requests and
// answers on the wire. A server that does not fulfil a clause names it in Target.Lacks, and then
// the clause must fail.
package kubetest
