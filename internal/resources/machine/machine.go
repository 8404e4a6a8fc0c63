// Package machine describes the topology of a machine's processors and memory: which CPUs are
// threads of one core, which cores share a cache and a socket, and the NUMA node of each.
//
// Owns: the topology, and how it is read.
// Reads: sysfs and procfs, once, at the start.
// Never: allocates resources.
package machine

// Machine is the topology of a machine.
type Machine struct {
	// CPUs are the online CPUs, sorted by ID.
	CPUs []CPU
	// Nodes are the NUMA nodes, sorted by ID: at least one.
	Nodes []Node
}

// CPU is a logical CPU of the kernel: a hardware thread.
type CPU struct {
	ID int
	// Core is the lowest ID of the core's online CPUs, so it is unique on the machine.
	Core int
	// Cache is the ID of the CPU's last-level cache (L3, "uncore cache"). CPUs of a socket without
	// a reported L3 cache share an ID.
	Cache  int
	Socket int
	Node   int
}

// Node is a NUMA node. It may have memory but no CPUs.
type Node struct {
	ID int
	// Memory is the total memory of the node, in bytes.
	Memory int64
	// HugePages is the number of preallocated hugepages of the node, by page size in bytes.
	HugePages map[int64]int64
	// Distances are the relative access costs of the nodes, by ID; that of the node itself is 10
	// (ACPI SLIT). Nil if not reported.
	Distances map[int]int
}
