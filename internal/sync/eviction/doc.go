// Package eviction is evictionManager: it ends pods before the machine runs out of memory, tasks or
// disk (Kubernetes documentation, "Node-pressure Eviction"), and pods that take more of its disks
// than they were granted ("Local ephemeral storage").
//
//	kernel: memory may be short ─┐
//	a time in which what is left ┴► read ──► judge: which thresholds are met, and due ──► conditions of the node
//	could be taken                   ▲                        │ due
//	                                 └── wait until it is free ◄── evict the first ◄── rank ◄── remove what nobody needs
//
// Memory and tasks have one loop, disks another: a walk over files keeps memory waiting for
// nothing.
//
// Owns: the state of thresholds, which survives the agent; the order in which pods are ended; when
// a pod with limits of local storage is looked at.
// Reads: what is left of memory, tasks and disks; what pods use, their limits and lifecycles.
// Never: stops a container itself; evicts a second pod before it was read what the first one left,
// but for a hard threshold while a pod has the grace of a soft one.
package eviction
