// Package server is the agent's HTTP API on a root-only unix socket: what runs here, its logs, the journal, and the order to stop.
//
//	Listen(run dir) ──► peer is root? ──► limits ──► route ──► one of Handlers
//
// Paths that the kubelet has too are the kubelet's (/healthz, /pods, /containerLogs); the rest is below /berth/v1.
//
// Owns: the socket and its folder, the paths, the errors and the limits of the API.
// Reads: what Handlers hand out, and container logs.
// Never: changes a pod it was given, lets a client hold up the agent, knows who implements Handlers.
package server
