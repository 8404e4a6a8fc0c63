// Package status is statusManager: it generates the status of a pod from the observed state (pure
// functions), stores the newest one of each pod, and writes it to the API server.
//
// Owns: the newest v1.PodStatus of each pod, its transition times, and the subscribers to changes;
// the API server's copy (Patcher) and the mirrors of static pods (Mirrors).
// Reads: the pod, its observation, probe results, start errors and the worker's decisions, all
// passed in.
// Never: calls the runtime, lets the API server block a pod, moves a pod out of a terminal phase.
//
//	observation ──┐
//	probes ───────┼─► Generate ──► Manager.Set ──► Get, WithStatus, subscribers
//	start errors ─┘      ▲              │
//	                     └─── Old ◄─────┘
package status
