// Package oom reports the processes that the kernel killed for want of memory: of which container,
// by what limit, or of the node as a whole.
//
//	kernel log ──► parser ──► name, limit and usage of each kill ──┐
//	counters of cgroups (a wake-up each) ──► how many there were ──┴─► reported once, as events
//
// The log says what was killed and why, but not always: it may be closed to us, and under a flood
// of kills the kernel shortens it. The counters never lie and say nothing more. What a counter has
// beyond the log is reported without a name.
//
// Owns: the reader of the kernel log, the watch on the counters, which kills were reported.
// Reads: the kernel log, counters of containers' cgroups, observations.
// Never: kills, or writes into a cgroup's limits.
package oom
