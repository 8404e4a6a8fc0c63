// Package pod is the vocabulary of the agent: what a pod is called, where it comes from, what was
// desired and what was observed.
//
// Owns: PodUpdate, the observed Status, Manager (desired pods), States (lifecycle answers), Inbox
// and Publisher (coalescing wake-ups).
// Reads: nothing.
// Never: does I/O, starts a goroutine, decides what happens to a pod.
package pod
