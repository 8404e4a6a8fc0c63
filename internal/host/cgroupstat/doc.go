// Package cgroupstat reads the kernel's statistics of a cgroup: CPU, memory, I/O, processes and
// pressure, of version 1 and 2 in one format.
//
// Owns: the names and formats of the kernel's files, and the descriptors of files that stay open.
// Reads: cgroupfs.
// Never: writes, walks the tree, or caches a value.
package cgroupstat
