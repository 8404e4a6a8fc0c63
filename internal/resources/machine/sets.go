package machine

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/cpuset"
)

// Online returns all CPUs of the machine.
func (m Machine) Online() cpuset.CPUSet {
	return m.where(func(CPU) bool { return true })
}

// OnNodes returns the CPUs of NUMA nodes.
func (m Machine) OnNodes(ids ...int) cpuset.CPUSet {
	return m.where(func(c CPU) bool { return slices.Contains(ids, c.Node) })
}

// OnCaches returns the CPUs of last-level caches.
func (m Machine) OnCaches(ids ...int) cpuset.CPUSet {
	return m.where(func(c CPU) bool { return slices.Contains(ids, c.Cache) })
}

func (m Machine) where(is func(CPU) bool) cpuset.CPUSet {
	var ids []int
	for _, c := range m.CPUs {
		if is(c) {
			ids = append(ids, c.ID)
		}
	}
	return cpuset.New(ids...)
}

// Sockets returns the IDs of the sockets with CPUs, ascending.
func (m Machine) Sockets() []int { return m.ids(func(c CPU) int { return c.Socket }) }

// CPUNodes returns the IDs of the NUMA nodes with CPUs, ascending.
func (m Machine) CPUNodes() []int { return m.ids(func(c CPU) int { return c.Node }) }

// Caches returns the IDs of the last-level caches, ascending.
func (m Machine) Caches() []int { return m.ids(func(c CPU) int { return c.Cache }) }

// Cores returns the IDs of the cores, ascending.
func (m Machine) Cores() []int { return m.ids(func(c CPU) int { return c.Core }) }

func (m Machine) ids(of func(CPU) int) []int {
	ids := make([]int, 0, len(m.CPUs))
	for _, c := range m.CPUs {
		ids = append(ids, of(c))
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// ThreadsPerCore returns the number of threads of the largest core.
//
// Differs from the kubelet: it divides CPUs by cores and rounds down, which results in 1 if one of
// many cores has lost a thread.
func (m Machine) ThreadsPerCore() int {
	most, threads := 0, map[int]int{}
	for _, c := range m.CPUs {
		threads[c.Core]++
		most = max(most, threads[c.Core])
	}
	return most
}

// String summarizes the machine: "2 sockets, 4 NUMA nodes, 64 cores, 128 CPUs".
func (m Machine) String() string {
	nodes := count(len(m.Nodes), "NUMA node")
	if without := len(m.Nodes) - len(m.CPUNodes()); without > 0 {
		nodes += fmt.Sprintf(" (%d without CPUs)", without)
	}
	return strings.Join([]string{
		count(len(m.Sockets()), "socket"), nodes,
		count(len(m.Cores()), "core"), count(len(m.CPUs), "CPU"),
	}, ", ")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
