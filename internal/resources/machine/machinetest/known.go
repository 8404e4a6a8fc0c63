package machinetest

// Known are real machines, including badly described ones of kernels and hypervisors.
var Known = map[string]Shape{
	"one CPU": {},
	// Four cores with two threads each.
	"laptop": {Cores: 4, Threads: 2, Memory: 16 << 30},
	// A virtual machine that reports threads but no caches.
	"virtual": {Sockets: 2, Cores: 2, Threads: 2, Numbers: Adjacent, Lacks: []Lack{Caches}},
	// Two sockets that are one node each, with cores numbered alternately.
	"two sockets": {Sockets: 2, Cores: 6, Threads: 2, Numbers: Dealt, HugePages: map[int64]int64{2 << 20: 512, 1 << 30: 0}},
	// Each socket has two nodes that share one cache (sub-NUMA clustering).
	"sub-NUMA": {Sockets: 2, Nodes: 2, Cores: 8, Threads: 2, HugePages: map[int64]int64{2 << 20: 128, 1 << 30: 4}},
	// AMD EPYC with one node per socket, and eight caches of eight cores.
	"EPYC NPS1": {Sockets: 2, Caches: 8, Cores: 64, Threads: 2},
	// The same with four nodes per socket.
	"EPYC NPS4": {Sockets: 2, Nodes: 4, Caches: 8, Cores: 64, Threads: 2},
	// The same with a node for each cache.
	"EPYC L3 as NUMA": {Sockets: 2, Nodes: 8, Caches: 8, Cores: 64, Threads: 2},
	// A small one of that kind, for exhaustive tests.
	"small EPYC": {Sockets: 1, Nodes: 2, Caches: 4, Cores: 8, Threads: 2},
	// Four sockets, two of which form a node.
	"sockets in nodes": {Sockets: 4, SocketsPerNode: 2, Cores: 3, Threads: 2, SocketStep: 3},
	// POWER9: four threads per core, and nodes 0 and 8.
	"POWER9": {Sockets: 2, Cores: 4, Threads: 4, Numbers: Adjacent, SocketStep: 8, NodeStep: 8},
	// ARM without sockets and threads, and with caches without IDs.
	"ARM": {Cores: 8, Caches: 2, Lacks: []Lack{Packages, CacheIDs}},
	// ARM with two nodes, and IDs that firmware derives from addresses.
	"ARM server": {Sockets: 2, Cores: 8, Caches: 2, SocketStep: 36, CacheStep: 100663296},
	// A machine with memory-only nodes (CXL, HBM).
	"memory node": {Sockets: 2, Cores: 4, Threads: 2, MemoryNodes: 2},
	// Offline CPUs: a whole core, and single threads of others.
	"offline": {Sockets: 2, Cores: 4, Threads: 2, Offline: []int{0, 3, 11, 12, 15}},
	// All CPUs of a node are offline.
	"idle node": {Sockets: 2, Cores: 2, Threads: 2, Offline: []int{2, 3, 6, 7}},
	// Kernels that report less.
	"no NUMA":      {Sockets: 2, Cores: 2, Threads: 2, HugePages: map[int64]int64{2 << 20: 8}, Lacks: []Lack{NUMA}},
	"no topology":  {Cores: 4, Threads: 2, Lacks: []Lack{Topology, Caches}},
	"no distances": {Sockets: 2, Cores: 2, Lacks: []Lack{Distances}},
	"old kernel":   {Sockets: 2, Nodes: 2, Caches: 2, Cores: 4, Threads: 2, Lacks: []Lack{NewNames, CacheIDs}},
	// 512 CPUs, for benchmarks.
	"huge": {Sockets: 2, Nodes: 4, Caches: 16, Cores: 128, Threads: 2},
}
