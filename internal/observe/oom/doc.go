// Package oom reports the processes that the kernel's OOM killer terminated: of which container, by
// which limit, or of the node as a whole.
//
//	kernel log ──► parser ──► name, limit and usage of each kill ──┐
//	counters of cgroups (a wake-up each) ──► how many there were ──┴─► reported once, as events
//
// The log has the process and the cause, but not always: the agent may not be permitted to read it,
// and under a flood of kills the kernel suppresses lines. The counters are reliable and have only
// the number. Kills that only a counter has are reported without a process name.
//
// Owns: the reader of the kernel log, the watch on the counters, which kills were reported.
// Reads: the kernel log, counters of containers' cgroups, observations.
// Never: kills, or writes into a cgroup's limits.
package oom
