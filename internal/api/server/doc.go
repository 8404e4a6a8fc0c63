// Package server is the agent's HTTP API: what runs here, its logs, a way into containers, the
// journal, and the order to stop.
//
//	unix socket, root only ──► limits ──────────────────────► all paths
//	HTTPS 10250 ─────────────► limits ──► authn ──► authz ──► the kubelet's paths
//	HTTP 10255 ──────────────► limits ──────────────────────► /pods, /stats, /metrics, /healthz
//	HTTP 10248 ──────────────► limits ──────────────────────► /healthz
//
// Each listener has limits of its own, of connections, requests and streams. The handlers are in
// one type per subject, and every listener serves some of them. Paths that the kubelet has too are
// the kubelet's (/healthz, /pods, /containerLogs, /exec); the rest is below /berth/v1, and at the
// socket alone. Run mode opens the socket only.
//
// Owns: the listeners, the paths, the errors and the limits of the API; the cached answers of the
// API server about tokens and access.
// Reads: what Handlers hand out, container logs, and where the runtime waits for a stream.
// Never: changes a pod it was given, lets a client hold up the agent, knows who implements
// Handlers.
package server
