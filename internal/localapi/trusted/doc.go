// Package trusted executes the agent's own writes to the local API: pod statuses, the Node, leases,
// events, mirror pods, and objects of manifests. Writes of other clients are validated and admitted
// by internal/localapi/registry.
//
// Owns: nothing.
// Reads: the store.
// Never: judges an object. What the agent writes is trusted, so that it can be written while
// nothing runs that could judge it.
package trusted
