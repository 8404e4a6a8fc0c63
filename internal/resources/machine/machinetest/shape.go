// Package machinetest has machines for tests: known ones, and whatever a test describes, as what
// package machine should say of them and as the files from which it reads that.
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

// Shape describes a machine whose parts are alike. Numbers that are 0 are 1, unless it is said
// otherwise.
type Shape struct {
	Sockets int
	// Nodes is how many NUMA nodes each socket has.
	Nodes int
	// SocketsPerNode is how many sockets each NUMA node has; more than one needs Nodes to be 1.
	SocketsPerNode int
	// Caches is how many L3 caches each socket has: more than Nodes, as many or fewer.
	Caches int
	// Cores is how many cores each socket has. Caches and nodes have equal parts of them, in the
	// order of their numbers.
	Cores   int
	Threads int // of each core
	Numbers Numbering

	// SocketStep and NodeStep lie between the IDs of sockets and nodes, CacheStep between those of
	// caches that a kernel tells.
	SocketStep, NodeStep, CacheStep int

	// MemoryNodes is how many nodes come after the others and have no CPUs; it may be 0.
	MemoryNodes int
	// Memory is what each node has, in bytes; 0 is 64 GiB.
	Memory int64
	// HugePages are those of each node, by size in bytes.
	HugePages map[int64]int64
	// Offline are CPUs that are not used.
	Offline []int
	// Lacks is what the kernel or the firmware does not tell.
	Lacks []Lack
}

// Numbering is how a machine numbers its CPUs.
type Numbering int

const (
	// Split numbers the first threads of all cores first, then the second threads: what most
	// firmware does.
	Split Numbering = iota
	// Adjacent gives threads of one core numbers in a row: what most virtual machines and POWER do.
	Adjacent
	// Dealt is Split with cores numbered in turns, one of each socket.
	Dealt
)

// Lack is what a machine does not tell.
type Lack int

const (
	// NUMA lacks: the kernel was built without it, and there is no folder of nodes.
	NUMA Lack = iota
	// CacheIDs lack, as in old kernels.
	CacheIDs
	// Caches lack: there is no folder of caches, as in many virtual machines.
	Caches
	// Packages lack: physical_package_id is -1, as on ARM whose firmware does not tell.
	Packages
	// Topology lacks: no core and no socket is told.
	Topology
	// NewNames lack: there is thread_siblings_list alone, as in old kernels.
	NewNames
	// Distances lack.
	Distances
)

// place is where a CPU lies, in numbers that have no holes.
type place struct{ id, core, thread, cache, node, socket int }

// whole returns the shape with its zero numbers replaced.
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

// nodes is how many NUMA nodes have CPUs.
func (s Shape) nodes() int { return s.Sockets * s.Nodes / s.SocketsPerNode }

// places returns all CPUs, those that are offline too, by ID.
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

// online returns the CPUs that are online, by ID.
func (s Shape) online() []place {
	return slices.DeleteFunc(s.places(), func(p place) bool { return slices.Contains(s.Offline, p.id) })
}

// Machine returns what package machine should say of it.
func (s Shape) Machine() machine.Machine {
	s = s.whole()
	var m machine.Machine
	cores, caches := map[int]int{}, map[int]int{} // the lowest IDs in them
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

// distance is that of two nodes: of one, of one socket, of two, or to memory that has no CPUs.
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
