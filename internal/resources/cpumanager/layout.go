package cpumanager

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"k8s.io/utils/cpuset"

	"berth/internal/resources/machine"
	"berth/internal/resources/topologymanager"
)

// maxNode is the highest NUMA node ID that topologymanager.Nodes can hold.
const maxNode = 63

// layout indexes the machine's topology for hints and checks.
type layout struct {
	machine *machine.Machine
	online  cpuset.CPUSet
	nodes   []int // nodes with CPUs, ascending
	sockets int
	// CPUs by the ID of the NUMA node, socket, core or cache.
	inNode, inSocket, inCore, inCache map[int]cpuset.CPUSet
	socketOf                          map[int]topologymanager.Nodes // NUMA nodes by socket
	// threads is the number of CPUs of a core.
	//
	// Differs from the kubelet: it is that of the largest core. On a machine with offline CPUs, or
	// with cores of two kinds, the average is below two, and full-pcpus-only would have no effect.
	threads int
}

func newLayout(m *machine.Machine) (*layout, error) {
	l := &layout{machine: m, socketOf: map[int]topologymanager.Nodes{}}
	all, nodes, sockets, cores, caches := []int{}, map[int][]int{}, map[int][]int{}, map[int][]int{}, map[int][]int{}
	for _, c := range m.CPUs {
		if c.Node < 0 || c.Node > maxNode {
			return nil, fmt.Errorf("CPU %d belongs to NUMA node %d; nodes from 0 to %d are supported", c.ID, c.Node, maxNode)
		}
		all = append(all, c.ID)
		nodes[c.Node], sockets[c.Socket] = append(nodes[c.Node], c.ID), append(sockets[c.Socket], c.ID)
		cores[c.Core], caches[c.Cache] = append(cores[c.Core], c.ID), append(caches[c.Cache], c.ID)
		l.socketOf[c.Socket] |= 1 << c.Node
	}
	l.online, l.nodes, l.sockets = cpuset.New(all...), slices.Sorted(maps.Keys(nodes)), len(sockets)
	l.inNode, l.inSocket, l.inCore, l.inCache = sets(nodes), sets(sockets), sets(cores), sets(caches)
	for _, core := range l.inCore {
		l.threads = max(l.threads, core.Size())
	}
	return l, nil
}

func sets(lists map[int][]int) map[int]cpuset.CPUSet {
	out := make(map[int]cpuset.CPUSet, len(lists))
	for id, list := range lists {
		out[id] = cpuset.New(list...)
	}
	return out
}

func (l *layout) ofNodes(nodes topologymanager.Nodes) cpuset.CPUSet {
	out := cpuset.New()
	for _, id := range l.nodes {
		if nodes&(1<<id) != 0 {
			out = out.Union(l.inNode[id])
		}
	}
	return out
}

// ofSockets returns the CPUs of all sockets that contain one of the nodes.
func (l *layout) ofSockets(nodes topologymanager.Nodes) cpuset.CPUSet {
	out := cpuset.New()
	for socket, has := range l.socketOf {
		if nodes&has != 0 {
			out = out.Union(l.inSocket[socket])
		}
	}
	return out
}

// countSockets returns the number of sockets that contain one of the nodes.
func (l *layout) countSockets(nodes topologymanager.Nodes) int {
	n := 0
	for _, has := range l.socketOf {
		if nodes&has != 0 {
			n++
		}
	}
	return n
}

func (l *layout) nodesOf(cpus cpuset.CPUSet) topologymanager.Nodes {
	var nodes topologymanager.Nodes
	for _, id := range l.nodes {
		if !l.inNode[id].Intersection(cpus).IsEmpty() {
			nodes |= 1 << id
		}
	}
	return nodes
}

// wholeCores returns the subset of cpus that consists of complete cores.
func (l *layout) wholeCores(cpus cpuset.CPUSet) cpuset.CPUSet {
	out := cpuset.New()
	for _, core := range l.inCore {
		if core.IsSubsetOf(cpus) {
			out = out.Union(core)
		}
	}
	return out
}

func (l *layout) ofThreads(n int) cpuset.CPUSet {
	out := cpuset.New()
	for _, core := range l.inCore {
		if core.Size() == n {
			out = out.Union(core)
		}
	}
	return out
}

// inOneCache reports whether all of the CPUs share a last-level cache.
func (l *layout) inOneCache(cpus cpuset.CPUSet) bool {
	for _, cache := range l.inCache {
		if cpus.IsSubsetOf(cache) {
			return true
		}
	}
	return false
}

func count(nodes topologymanager.Nodes) int { return bits.OnesCount64(uint64(nodes)) }
