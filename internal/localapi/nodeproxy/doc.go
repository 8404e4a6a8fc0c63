// Package nodeproxy serves nodes/NAME/proxy of the local API: what Prometheus and dashboards read
// of the node API through an API server.
//
// Owns: nothing.
// Reads: the Node, from the store.
// Never: authorizes, or connects to another machine.
package nodeproxy
