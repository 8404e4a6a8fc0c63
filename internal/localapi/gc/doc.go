// Package gc takes away what nothing needs any more: objects whose owners are gone, the
// content of namespaces that are deleted, finalizers that protect what nobody uses, and old events.
// New namespaces get the objects that each has.
//
//	store.Since ──► what changed ──► whom may that concern? ──► look at those ──► delete, patch
//	                                                                 ▲
//	                              one deadline: an event is old, or a write is tried again
//
// It is what kube-controller-manager does by its garbage collector, its namespace controller and
// its controllers that protect volumes, for the kinds of the local API
// (kubernetes.io/docs/concepts/architecture/garbage-collection).
//
// Owns: an index of the objects that have owners, and when each event is old.
// Reads: the store. Each decision is made of what it has at that moment, and each write has the uid
// and the resourceVersion that it was made of.
// Never: polls, deletes an object that has an owner that lives or that cannot be known.
package gc
