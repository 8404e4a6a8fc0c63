// Package scheduler binds pods without a node to the node of this machine when they fit.
//
//	store.Since ──► pending pods ──► Decider ──► bind, or the condition PodScheduled
//
// It does what kube-scheduler does for one node: a pod that does not fit is Pending and
// Unschedulable until a pod terminates, the node changes or a claim is bound. During a shutdown of
// the machine no pods are bound, since the agent would reject them. Pods are bound by priority,
// then by age; reasons, events and messages are kube-scheduler's. It does not preempt. The journal
// records why a pod waited, also after it is bound. Explain returns the values that prevent the
// binding of a pod now, and the pods that cause them. Pods with another spec.schedulerName are left
// to that scheduler.
//
// Owns: the queue of pods without a node, and a cache of the assigned ones.
// Reads: the store; whether the machine is being shut down.
// Never: binds a pod that has scheduling gates, evicts a pod, polls.
package scheduler
