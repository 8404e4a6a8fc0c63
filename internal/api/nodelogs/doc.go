// Package nodelogs reads the logs of the node itself: files below its log folder, and what its
// journal has of its services (KEP-2258).
//
// Owns: nothing that lasts; files and journalctl processes live as long as the question.
// Reads: the node's log folder, and the journal through journalctl.
// Never: leaves the log folder, starts a shell, waits for a pipe or a device, holds a log in
// memory.
package nodelogs
