// Package machine says how the processors and the memory of a machine lie: which CPUs are threads
// of one core, which cores share a cache and a socket, and which NUMA node each belongs to.
//
// Owns: the layout, and how it is read.
// Reads: sysfs and procfs, once, at the start.
// Never: decides who gets what.
package machine

// Machine is the layout of a machine.
type Machine struct {
	// CPUs are those that are online, by ID.
	CPUs []CPU
	// Nodes are the NUMA nodes, by ID: at least one.
	Nodes []Node
}

// CPU is what the kernel schedules on: a hardware thread.
type CPU struct {
	ID int
	// Core is the lowest ID of the CPUs that are threads of the same core, so that it is unique on
	// the machine.
	Core int
	// Cache is the ID of the last-level cache (L3, "uncore cache") that the CPU uses; the socket's
	// where none is told.
	Cache  int
	Socket int
	Node   int
}

// Node is a NUMA node. One without CPUs has memory alone.
type Node struct {
	ID int
	// Memory is all that the node has, in bytes.
	Memory int64
	// HugePages is how many pages are set aside on the node, by their size in bytes.
	HugePages map[int64]int64
	// Distances are the relative costs of reaching the nodes, by their ID; 10 is the node itself
	// (ACPI SLIT). Nil: they are not told.
	Distances map[int]int
}
