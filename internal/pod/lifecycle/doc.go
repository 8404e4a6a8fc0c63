// Package lifecycle is the set of pure rules that plan, status and probes share: whether to start a
// container or create a sandbox, how long to delay the restart of a crashing container, which phase
// a pod is in.
//
// Owns: the rules, the user-visible reasons, the spec hash of containers, the state of crash-loop
// back-offs.
// Reads: only what is passed in; no clock.
// Never: does I/O, starts a goroutine, changes a pod or a status.
package lifecycle
