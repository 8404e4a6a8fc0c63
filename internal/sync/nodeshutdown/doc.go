// Package nodeshutdown ends pods in good order before the machine is turned off (KEP-2000, and
// KEP-2712 for the order by priority).
//
//	logind: a shutdown is about to begin ──► the Node is not ready, no pod is admitted
//	         ▲                                   │ group after group, from the lowest priority
//	         │                                   ▼
//	         └── the lock is given back ◄── all have ended and hold no volume, or their time is over
//
// Owns: whether the machine is being shut down; the lock that delays it; when its pods end, and
// with which grace period; the file graceful_node_shutdown_state.
// Reads: the pods, their priorities and lifecycles; the signals of logind.
// Never: stops a container itself; looks for anything by the clock.
package nodeshutdown
