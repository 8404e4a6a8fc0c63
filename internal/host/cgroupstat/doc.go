// Package cgroupstat reads what the kernel counts for a cgroup: CPU, memory, I/O, processes and
// pressure, of version 1 and 2 in one form.
//
// Owns: the names and forms of the kernel's files, and the descriptors of those that are kept open.
// Reads: cgroupfs.
// Never: writes, walks the tree, or remembers a value.
package cgroupstat
