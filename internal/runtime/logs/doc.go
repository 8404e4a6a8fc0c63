// Package logs implements the reader for kubectl logs, and the names of log files and their rotated
// parts.
//
// Owns: nothing persistent; a reader's file, watch and buffer exist during the call, the shared
// inotify instance while any reader follows.
// Reads: log files written by the runtime, in CRI's format and in Docker's, and rotated ones,
// compressed or not.
// Never: writes or rotates a log, holds a whole file or a whole long line in memory.
package logs
