// Package node keeps this machine's Node object at the API server: it registers it, reports its
// status and renews its lease.
//
// Owns: the Node and its status as this machine tells them, the lease in kube-node-lease, the
// stored copy of the Node's labels.
// Reads: the machine (/proc, /sys, file systems, interfaces), the runtime's status, the Node of the
// API server.
// Never: decides about pods; holds up a pod because the API server is away; makes a Node again that
// somebody deleted.
package node
