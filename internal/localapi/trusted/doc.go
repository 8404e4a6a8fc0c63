// Package trusted carries out what the agent itself writes to the local API: the status of pods, the
// Node, leases, events, mirror pods, and what manifests define. What others write goes another way
// (internal/localapi/registry).
//
// Owns: nothing.
// Reads: the store.
// Never: judges an object. What the agent writes is trusted, so that it can be written while
// nothing runs that could judge it.
package trusted
