// Package localapi is the Kubernetes API of one machine: pods and what belongs to them, without a
// control plane (ADR 12).
//
//	clients ──TLS, unix socket──► access: who may? ─┬─ get, list, watch ──────► reads ────┐
//	                                                ├─ whatever is judged ────► registry ─┤► store
//	agent ────in memory──────────► its own reads and writes ──────────────────► own ──────┘
//	                                                └─ log, exec, attach, portforward ► podcalls ► node API
//
// An API that the agent alone reaches (OpenPrivate) has its reads and writes, and the parts below;
// its objects end with the agent.
//
// Where the objects are elsewhere, View serves the reads alone, out of what replica has copied of
// the agent's memory.
//
// Beside them, parts that follow the store do what controllers do in a cluster: garbage, binder,
// manifests.
//
// Owns: the file of objects, the listeners, the first objects.
// Reads: nothing.
// Never: starts a pod. That is the agent's, which is told of pods as by any API server.
package localapi
