// Package prober (probeManager) runs the liveness, readiness and startup probes of all pods and
// keeps what they say of each incarnation of a container.
//
//	podsync ── Sync: what runs ──► deadlines ──► attempts ──► thresholds ── verdict changed ──► Results ──► syncLoop
//	                                   ▲                          │
//	                                   └──── the next period ◄────┘
//
// One goroutine sleeps until the earliest deadline of all probes, so that a probe costs a heap
// entry and no goroutine or timer of its own. An attempt that is under way has a goroutine. So many
// attempts run at a time as there are places; one that has waited for a place for patience gets
// another, so that hanging probes never hold up the rest, and an instant at which all probes are
// due is no flood. No pod has more than placesPerPod.
//
// Verdicts are kept in a file, by container id, so that the next agent goes on where this one
// ended: a container that was ready stays ready until attempts fail as often as its threshold says.
//
// Owns: when probes run, the verdicts of liveness, readiness and startup probes, the file that
// keeps them.
// Reads: observations, as podsync hands them over.
// Never: kills or restarts a container, writes a status, polls.
package prober
