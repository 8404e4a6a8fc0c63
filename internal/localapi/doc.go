// Package localapi is the Kubernetes API of one node, without a control plane (ADR 12).
//
//	clients ──TLS, unix socket──► auth: authorized? ─┬─ get, list, watch ─────► read ──────┐
//	                                                 ├─ writes to validate ──► apiserver ──┤► store
//	agent ────loopback──────────► its reads and trusted writes ───────────────► trusted ───┘
//	                                                 └─ log, exec, portforward ► podproxy ► node API
//
// An API that only the agent can reach (OpenPrivate) serves the agent's reads and writes and runs
// the controllers below except the scheduler. Its objects are deleted when the agent exits.
//
// Where the objects are in another API server, View serves reads only, from the copy that nodeview
// makes of the agent's memory.
//
// Controllers watch the store as they do in a cluster: gc, pvbinder, scheduler, manifests.
//
// Owns: the object file, the listeners, the initial objects.
// Reads: nothing.
// Never: starts a pod. The agent does, and watches pods as with any API server.
package localapi
