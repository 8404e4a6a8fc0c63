// Package trusted executes the agent's own writes to the local API: pod statuses, the Node, leases,
// events, mirror pods, and objects of manifests. Writes of other clients are validated and admitted
// by internal/localapi/apiserver.
//
// Owns: nothing.
// Reads: the store.
// Never: validates an object. The agent's writes are trusted, so that they need no API writer.
package trusted
