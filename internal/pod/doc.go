// Package pod defines the types that the agent's components share: pod identity, source, desired
// and observed state.
//
// Owns: PodUpdate, the observed Status, Manager (desired pods), States (pod lifecycles), Inbox and
// Publisher (coalescing wake-ups).
// Reads: nothing.
// Never: does I/O, starts a goroutine, decides what happens to a pod.
package pod
