// Package nodelogs reads the logs of the node: files below its log directory, and the journal of
// its services (KEP-2258).
//
// Owns: nothing persistent; files and journalctl processes live as long as the request.
// Reads: the node's log directory, and the journal through journalctl.
// Never: leaves the log directory, starts a shell, waits for a pipe or a device, holds a log in
// memory.
package nodelogs
