// Package node maintains this machine's Node object at the API server: it registers it, reports its
// status and renews its lease.
//
// Owns: the Node and its status as this machine reports them, the lease in kube-node-lease, the
// stored copy of the Node's labels.
// Reads: the machine (/proc, /sys, file systems, interfaces), the runtime's status, the Node of the
// API server.
// Never: decides about pods; blocks a pod because the API server is unavailable; recreates a Node
// that was deleted.
package node
