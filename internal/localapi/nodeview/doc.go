// Package nodeview mirrors an agent's objects into a store, for the read-only API of a node: its
// pods as it reports them, the Node, its events, and the namespaces of these. It is for an agent
// whose objects are in the API server of a cluster, or nowhere (ADR 12).
//
// Owns: what is in the store, which has no other writer.
// Reads: what its Source hands out; it changes none of that.
// Never: polls. What has changed it is told by inboxes, and it looks at the newest then.
package nodeview
