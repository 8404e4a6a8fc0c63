// Package machinetest has machines for tests: known ones, and those that a test describes. It has
// the expected result of package machine, and the files that package machine reads.
//
// Owns: nothing.
// Reads: nothing.
// Never: derives one of the two from the other.
package machinetest

import (
	"cmp"
	"maps"
	"slices"

	"berth/internal/resources/machine"
)

// Shape describes a machine with uniform parts. Numbers that are 0 default to 1, unless stated
// otherwise.
type Shape struct {
	Sockets int
	// Nodes is the number of NUMA nodes per socket.
	Nodes int
	// SocketsPerNode is the number of sockets per NUMA node; more than one requires Nodes to be 1.
	SocketsPerNode int
	// Caches is the number of L3 caches per socket: more than Nodes, as many or fewer.
	Caches int
	// Cores is the number of cores per socket. Caches and nodes have equal parts of them, in the
	// order of their numbers.
	Cores   int
	Threads int // per core
	Numbers Numbering

	// SocketStep and NodeStep are the distances between IDs of sockets and nodes, CacheStep that of
	// reported cache IDs.
	SocketStep, NodeStep, CacheStep int

	// MemoryNodes is the number of additional nodes without CPUs; it may be 0.
	MemoryNodes int
	// Memory is the memory of each node, in bytes; 0 means 64 GiB.
	Memory int64
	// HugePages are the hugepages of each node, by page size in bytes.
	HugePages map[int64]int64
	// Offline are the offline CPUs.
	Offline []int
	// Lacks is what the kernel or the firmware does not report.
	Lacks []Lack
}

// Numbering is how a machine numbers its CPUs.
type Numbering int

const (
	// Split numbers the first threads of all cores first, then the second threads, as most firmware
	// does.
	Split Numbering = iota
	// Adjacent numbers threads of a core consecutively, as most virtual machines and POWER do.
	Adjacent
	// Dealt is Split with core numbers that alternate between sockets.
	Dealt
)

// Lack is what a machine does not report.
type Lack int

const (
	// NUMA: the kernel was built without it, and has no node directory.
	NUMA Lack = iota
	// CacheIDs are missing, as in old kernels.
	CacheIDs
	// Caches: there is no cache directory, as in many virtual machines.
	Caches
	// Packages: physical_package_id is -1, as on ARM if the firmware does not report it.
	Packages
	// Topology: neither cores nor sockets are reported.
	Topology
	// NewNames: there is only thread_siblings_list, as in old kernels.
	NewNames
	// Distances between nodes are missing.
	Distances
)

// place is the position of a CPU, in consecutive numbers.
type place struct{ id, core, thread, cache, node, socket int }

// whole returns the shape with defaults.
func (s Shape) whole() Shape {
	for _, n := range []*int{
		&s.Sockets, &s.Nodes, &s.SocketsPerNode, &s.Caches, &s.Cores, &s.Threads,
		&s.SocketStep, &s.NodeStep, &s.CacheStep,
	} {
		*n = max(*n, 1)
	}
	s.Memory = cmp.Or(s.Memory, 64<<30)
	return s
}

func (s Shape) lacks(what Lack) bool { return slices.Contains(s.Lacks, what) }

// nodes returns the number of NUMA nodes with CPUs.
func (s Shape) nodes() int { return s.Sockets * s.Nodes / s.SocketsPerNode }

// places returns all CPUs, including offline ones, sorted by ID.
func (s Shape) places() []place {
	var all []place
	for socket := range s.Sockets {
		for i := range s.Cores {
			for thread := range s.Threads {
				p := place{
					core: socket*s.Cores + i, thread: thread, socket: socket,
					cache: socket*s.Caches + i*s.Caches/s.Cores,
					node:  (socket*s.Nodes + i*s.Nodes/s.Cores) / s.SocketsPerNode,
				}
				cores := s.Sockets * s.Cores
				switch s.Numbers {
				case Split:
					p.id = thread*cores + p.core
				case Adjacent:
					p.id = p.core*s.Threads + thread
				case Dealt:
					p.id = thread*cores + i*s.Sockets + socket
				}
				all = append(all, p)
			}
		}
	}
	slices.SortFunc(all, func(a, b place) int { return cmp.Compare(a.id, b.id) })
	return all
}

// online returns the online CPUs, sorted by ID.
func (s Shape) online() []place {
	return slices.DeleteFunc(s.places(), func(p place) bool { return slices.Contains(s.Offline, p.id) })
}

// Machine returns the expected result of package machine.
func (s Shape) Machine() machine.Machine {
	s = s.whole()
	var m machine.Machine
	cores, caches := map[int]int{}, map[int]int{} // lowest CPU ID of each
	for _, p := range s.online() {
		if _, ok := cores[p.core]; !ok {
			cores[p.core] = p.id
		}
		if _, ok := caches[p.cache]; !ok {
			caches[p.cache] = p.id
		}
		c := machine.CPU{
			ID: p.id, Core: cores[p.core], Cache: p.cache * s.CacheStep,
			Socket: p.socket * s.SocketStep, Node: p.node * s.NodeStep,
		}
		if s.lacks(Topology) {
			c.Core, c.Socket = p.id, 0
		}
		if s.lacks(Packages) {
			c.Socket = 0
		}
		if s.lacks(CacheIDs) {
			c.Cache = caches[p.cache]
		}
		if s.lacks(Caches) {
			c.Cache = c.Socket
		}
		if s.lacks(NUMA) {
			c.Node = 0
		}
		m.CPUs = append(m.CPUs, c)
	}
	n := s.nodes() + s.MemoryNodes
	if s.lacks(NUMA) {
		return machine.Machine{CPUs: m.CPUs, Nodes: []machine.Node{{
			Memory: int64(n) * s.Memory, HugePages: scaled(s.HugePages, n),
		}}}
	}
	for i := range n {
		node := machine.Node{ID: i * s.NodeStep, Memory: s.Memory, HugePages: scaled(s.HugePages, 1)}
		if !s.lacks(Distances) {
			node.Distances = map[int]int{}
			for j := range n {
				node.Distances[j*s.NodeStep] = s.distance(i, j)
			}
		}
		m.Nodes = append(m.Nodes, node)
	}
	return m
}

// distance returns the distance of two nodes: of the same node, within a socket, between sockets,
// or to a node without CPUs.
func (s Shape) distance(i, j int) int {
	switch {
	case i == j:
		return 10
	case i >= s.nodes() || j >= s.nodes():
		return 24
	case i/s.Nodes == j/s.Nodes:
		return 12
	}
	return 32
}

func scaled(pages map[int64]int64, n int) map[int64]int64 {
	pages = maps.Clone(pages)
	for size := range pages {
		pages[size] *= int64(n)
	}
	return pages
}
