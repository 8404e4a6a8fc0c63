// Package gc is the garbage collector: it deletes objects whose owners do not exist, the content of
// deleted namespaces, finalizers of unused claims and volumes, and expired events. It creates the
// default objects of namespaces.
//
//	store.Since ──► changes ──► objects they may concern ──► Sync ──► delete, patch
//	                                                           ▲
//	                        one deadline: an event expires, or a write is retried
//
// It does what kube-controller-manager's garbage collector, namespace controller and volume
// protection controllers do, for the kinds of the local API
// (kubernetes.io/docs/concepts/architecture/garbage-collection).
//
// Owns: an index of the objects that have owners, and the expiry of each event.
// Reads: the store. Each decision uses its current state, and each write has the uid and the
// resourceVersion that the decision was based on.
// Never: polls, deletes an object with an owner that exists or cannot be determined.
package gc
