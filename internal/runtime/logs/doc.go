// Package logs is the reader behind kubectl logs, and the names of log files and of the parts that
// they are rotated into.
//
// Owns: nothing that lasts; a reader's file, watch and buffer live as long as the call, the inotify
// instance of all as long as one follows.
// Reads: log files that the runtime writes, in CRI's format and in Docker's, and the rotated ones,
// compressed or not.
// Never: writes or rotates a log, holds a whole file or a whole long line in memory.
package logs
