// Package nodeshutdown terminates pods gracefully before the machine shuts down (KEP-2000, and
// KEP-2712 for the order by priority).
//
//	logind: a shutdown is about to begin ──► the Node is not ready, no pod is admitted
//	         ▲                                   │ group after group, lowest priority first
//	         │                                   ▼
//	         └── release the lock ◄── all pods are cleaned up, or the group's time is over
//
// Owns: whether the machine is shutting down; the inhibitor lock; when its pods terminate, and with
// which grace period; the file graceful_node_shutdown_state.
// Reads: the pods, their priorities and lifecycles; the signals of logind.
// Never: stops a container itself; polls.
package nodeshutdown
