// Package prober (probeManager) runs the liveness, readiness and startup probes of all pods and
// stores the results for each incarnation of a container.
//
//	podsync ── Sync ──► deadlines ──► attempts ──► thresholds ── change ──► Results ──► syncLoop
//	                        ▲                          │
//	                        └──── the next period ◄────┘
//
// One goroutine sleeps until the earliest deadline of all probes, so that a probe costs a heap
// entry and no goroutine or timer of its own. A running attempt has a goroutine. The number of
// concurrent attempts is limited to maxAttempts; an attempt that has waited for maxQueued starts
// nevertheless, so that hanging probes never block the others, and simultaneous deadlines cause no
// burst. No pod has more than maxAttemptsPerPod.
//
// Results are persisted by container ID, so that the next agent continues from them: a container
// that was ready stays ready until attempts fail as often as its threshold requires.
//
// Owns: the schedule of probes, the results of liveness, readiness and startup probes, the
// checkpoint of them.
// Reads: observations passed in by podsync.
// Never: kills or restarts a container, writes a status, polls.
package prober
