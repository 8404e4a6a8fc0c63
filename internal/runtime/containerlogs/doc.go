// Package containerlogs is the kubelet's containerLogManager: it enforces the limits of container
// logs (containerLogMaxSize, containerLogMaxFiles).
//
//	first write to an idle log ──► inspect, timed by its growth rate ──► rename, reopen by the runtime, remove the oldest ──► idle: compress
//
// An idle log costs nothing: inotify reports the first write, and is armed again when the log has
// stopped growing.
//
// Owns: the names and the number of the files that a log is rotated into, their compression and
// their removal while their container exists.
// Reads: observed pod states, for running and exited containers; sizes of their logs.
// Never: follows a link, touches the log of another incarnation, or blocks other containers' logs
// on one container's runtime call.
package containerlogs
