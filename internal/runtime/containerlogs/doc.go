// Package containerlogs is containerLogManager: it keeps the logs of containers within their limits
// (containerLogMaxSize, containerLogMaxFiles).
//
//	a write to a log at rest ──► looks, timed by how fast it grows ──► rename, have the runtime begin the next file, remove the oldest ──► calm: compress
//
// A log that nobody writes to costs nothing: inotify tells of the first write, and is asked again
// when the log has stopped to grow.
//
// Owns: the names and the number of the files that a log is rotated into, their compression and
// their end while their container exists.
// Reads: observations of pods, for which containers run or have exited; sizes of their logs.
// Never: follows a link, touches the log of another incarnation, or waits for one container's
// runtime call before it looks at others.
package containerlogs
