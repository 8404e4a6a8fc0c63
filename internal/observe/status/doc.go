// Package status is statusManager: it builds the status of a pod from what was observed (pure),
// keeps the newest of each pod, and tells the API server.
//
// Owns: the newest v1.PodStatus of each pod, its times of transition, and who is told of changes;
// the API server's copy (Patcher) and the mirrors of static pods (Mirrors).
// Reads: the pod, its observation, probe results, start errors and what the worker decided, all
// passed in.
// Never: asks the runtime, lets the API server hold up a pod, moves a pod out of a terminal phase.
//
//	observation ──┐
//	probes ───────┼─► Generate ──► Manager.Set ──► Get, WithStatus, subscribers
//	start errors ─┘      ▲              │
//	                     └─── Old ◄─────┘
package status
