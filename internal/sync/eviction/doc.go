// Package eviction is evictionManager: it evicts pods before the machine runs out of memory, tasks
// or disk (Kubernetes documentation, "Node-pressure Eviction"), and pods that exceed their limits
// of local storage ("Local ephemeral storage").
//
//	kernel memory event ─┐
//	poll interval ───────┴► read ──► judge: thresholds met, thresholds due ──► node conditions
//	                         ▲                                   │ due
//	                         └── await ◄── evict ◄── rank ◄── reclaim
//
// The poll interval is the time in which the available amount could be used up. Memory and tasks
// have one loop, disks another, so that measuring files does not delay memory.
//
// Owns: the state of thresholds, which is persisted; the order of evictions; when the usage of a
// pod with limits of local storage is measured.
// Reads: available memory, tasks and disk; the usage of pods, their limits and lifecycles.
// Never: stops a container itself; evicts a second pod before the available amount was read after
// the first one, except for a hard threshold during the grace period of a soft one.
package eviction
