package main

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"k8s.io/utils/cpuset"

	"berth/internal/explain"
	"berth/internal/host/preflight"
	"berth/internal/resources/machine"
	"berth/internal/resources/topologymanager"
)

// freeNodes is the maximum number of NUMA nodes that topology policies support without an option.
const freeNodes = 8

// checkTopology describes the topology of the machine with the given root directory.
func checkTopology(root fs.FS) []preflight.Check {
	m, err := machine.Read(root)
	if err != nil {
		return []preflight.Check{topologyUnknown("machine", "it is not known how it lies", err)}
	}
	offline, err := machine.Offline(root)
	checks := topologyChecks(m, offline)
	if err != nil {
		checks = append(checks, topologyUnknown("CPUs offline", "not known", err))
	}
	return checks
}

func topologyUnknown(name, found string, err error) preflight.Check {
	return preflight.Check{Name: name, Result: preflight.Warn, Found: found, Consequence: err.Error()}
}

// topologyChecks describes the machine and the consequences for CPU, memory and topology manager
// policies. It reports no failures.
func topologyChecks(m machine.Machine, offline cpuset.CPUSet) []preflight.Check {
	checks := []preflight.Check{
		{Name: "machine", Found: m.String(), Consequence: ofNodes(m.Nodes)},
		{Name: "CPUs", Found: m.Online().String()},
	}
	if len(m.CPUs) == 1 {
		checks[1].Consequence = "cpuManagerPolicy static has nothing to give: the host keeps one CPU at least"
	}
	if threads := m.ThreadsPerCore(); threads > 1 {
		groups := "in pairs"
		if threads > 2 {
			groups = fmt.Sprintf("in groups of %d", threads)
		}
		checks = append(checks, preflight.Check{
			Name: "threads per core", Found: fmt.Sprint(threads),
			Consequence: "cpuManagerPolicyOptions full-pcpus-only gives CPUs " + groups + ", and refuses pods that ask for other numbers",
		})
	}
	if !offline.IsEmpty() {
		checks = append(checks, preflight.Check{
			Name: "CPUs offline", Found: offline.String(),
			Consequence: "they are not assigned to containers; the policies use the CPUs that are online when the agent starts",
		})
	}
	for _, n := range m.Nodes {
		name := fmt.Sprintf("NUMA node %d", n.ID)
		checks = append(checks, preflight.Check{Name: name, Found: nodeFound(m, n)})
		if caches := cachesOn(m, n.ID); len(caches) > 1 {
			checks = append(checks, preflight.Check{
				Name: name + " caches", Found: fmt.Sprintf("%d of the last level: CPUs %s", len(caches), strings.Join(caches, " | ")),
				Consequence: "cpuManagerPolicyOptions prefer-align-cpus-by-uncorecache keeps a container on as few of them as it can",
			})
		}
	}
	for i := range checks {
		checks[i].Result = preflight.OK
	}
	return checks
}

// ofNodes describes the consequence of the NUMA nodes for topology policies.
func ofNodes(nodes []machine.Node) string {
	last := 0
	for _, n := range nodes {
		last = max(last, n.ID)
	}
	switch {
	case last >= topologymanager.MaxNodes:
		return fmt.Sprintf("topologyManagerPolicy must be none: others know the NUMA nodes 0 to %d only", topologymanager.MaxNodes-1)
	case len(nodes) > freeNodes:
		return fmt.Sprintf("a topologyManagerPolicy other than none needs topologyManagerPolicyOptions max-allowable-numa-nodes: \"%d\" at least", len(nodes))
	case len(nodes) == 1:
		return "topology policies change nothing here but for devices: there is one NUMA node"
	}
	return ""
}

// nodeFound describes the resources of a NUMA node and its distances.
func nodeFound(m machine.Machine, n machine.Node) string {
	found := []string{"no CPUs"}
	if cpus := m.OnNodes(n.ID); !cpus.IsEmpty() {
		found[0] = "CPUs " + cpus.String()
	}
	found = append(found, explain.ByteSize(n.Memory)+" of memory")
	for _, size := range slices.Sorted(maps.Keys(n.HugePages)) {
		if pages := n.HugePages[size]; pages > 0 {
			found = append(found, fmt.Sprintf("%d huge pages of %s", pages, explain.ByteSize(size)))
		}
	}
	if far := distancesOf(n); far != "" {
		found = append(found, far)
	}
	return strings.Join(found, "; ")
}

// distancesOf describes the distances to other nodes, nearest first, or returns "" if unknown.
func distancesOf(n machine.Node) string {
	at := map[int][]int{} // node IDs by distance
	for id, cost := range n.Distances {
		if id != n.ID {
			at[cost] = append(at[cost], id)
		}
	}
	var far []string
	for _, cost := range slices.Sorted(maps.Keys(at)) {
		word := "node"
		if len(at[cost]) > 1 {
			word = "nodes"
		}
		far = append(far, fmt.Sprintf("%d to %s %s", cost, word, cpuset.New(at[cost]...)))
	}
	if far == nil {
		return ""
	}
	return "distance " + strings.Join(far, ", ")
}

// cachesOn returns the CPUs of a node grouped by last-level cache.
func cachesOn(m machine.Machine, node int) (caches []string) {
	local := m.OnNodes(node)
	for _, id := range m.Caches() {
		if cpus := m.OnCaches(id).Intersection(local); !cpus.IsEmpty() {
			caches = append(caches, cpus.String())
		}
	}
	return caches
}
