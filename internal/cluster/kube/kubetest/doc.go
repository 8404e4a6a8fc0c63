// Package kubetest is a stateful API server that lives in memory, and the contract suite that it
// shares with a real kube-apiserver.
//
// Owns: Server (the fake: an http.Handler, and a transport without sockets), Fault (what goes
// wrong), RunContract (what both servers must do).
// Reads: the requests of its clients, the clock (which is virtual in a testing/synctest bubble).
// Never: opens a socket, holds a lock while it waits or writes.
//
// The fake keeps the objects that a node deals with and speaks JSON and protobuf. Like the real
// one, it has:
//
//   - resource versions: conflicts on update, watches from a version, 410 Gone for a version that is forgotten;
//   - label selectors, and the field selectors of the real server for each kind; others are refused;
//   - bookmarks each minute, and lists by watching that end with the bookmark k8s.io/initial-events-end;
//   - strategic merge, JSON merge and JSON patches; a UID in a patch is a precondition (422 Invalid, not a conflict);
//   - writes that change nothing and make no event; generations of pods;
//   - a status that only the status subresource changes, which in turn changes nothing of the spec;
//   - deletion with grace, preconditions and finalizers: a pod that is bound to a node stays until it is deleted with grace 0;
//   - the subresources binding, eviction (always granted) and token, and the approval of certificate signing requests.
//
// What it is not to have is the list lacks of its contract test, with the reasons: validation
// beyond names, admission, discovery, apply, dry run, tables, pages of one revision, protection of
// namespaces. Beside what the contract says it has no quota and no authentication (Authorization is
// recorded and ignored).
//
// A clause of the contract either is about what a client with types sees, in JSON and in protobuf,
// or about requests and answers as they go over the wire. A server that does not keep a clause
// names it in Target.Lacks, and then the clause must fail.
package kubetest
