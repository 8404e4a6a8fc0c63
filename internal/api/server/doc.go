// Package server is the agent's HTTP API: pods, container logs, exec, attach and port-forward, the
// journal, and stop requests.
//
//	unix socket, root only ──► limits ──────────────────────► all paths
//	HTTPS 10250 ─────────────► limits ──► authn ──► authz ──► the kubelet's paths
//	HTTP 10255 ──────────────► limits ──────────────────────► /pods, /stats, /metrics, /healthz
//	HTTP 10248 ──────────────► limits ──────────────────────► /healthz
//
// Each listener has its own limits of connections, requests and streams. There is one type of
// handlers per subject, and every listener serves some of them. Paths that the kubelet has too are
// the kubelet's (/healthz, /pods, /containerLogs, /exec); the others are below /berth/v1, and only
// at the socket. Run mode opens only the socket.
//
// Owns: the listeners, the paths, the errors and the limits of the API; the cached token and access
// reviews.
// Reads: what Handlers return, container logs, and the runtime's streaming URLs.
// Never: modifies a pod it was given, lets a client block the agent, depends on the implementation
// of Handlers.
package server
