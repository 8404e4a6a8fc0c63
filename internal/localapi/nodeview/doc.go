// Package nodeview mirrors an agent's objects into a store, for the read-only API of a node: its
// pods as it reports them, the Node, its events, and their namespaces. It is for an agent whose
// objects are in the API server of a cluster, or in none (ADR 12).
//
// Owns: the content of the store, which has no other writer.
// Reads: the objects of its Source; it does not modify them.
// Never: polls. Inboxes notify it of changes, and it then reads the newest state.
package nodeview
