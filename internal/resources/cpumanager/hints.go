package cpumanager

import (
	"math"

	"k8s.io/utils/cpuset"

	"berth/internal/resources/topologymanager"
)

// demand is a request for CPUs with the available ones.
type demand struct {
	// cpus is the number of requested CPUs.
	cpus int
	// held are the CPUs that the container or pod has, or that an earlier init container left.
	// Hints must include all their NUMA nodes.
	held cpuset.CPUSet
	// free are the other available CPUs.
	free cpuset.CPUSet
}

// computeHints returns the sets of NUMA nodes that can satisfy the demand. A hint is preferred if
// no smaller set could satisfy the demand on an empty machine. The result is never nil.
func computeHints(l *layout, o options, d demand) []topologymanager.Hint {
	must := l.nodesOf(d.held)
	usable := d.free.Union(d.held)
	all, has := make([]int, len(l.nodes)), make([]int, len(l.nodes))
	for i, id := range l.nodes {
		all[i], has[i] = l.inNode[id].Size(), l.inNode[id].Intersection(usable).Size()
	}
	smallest, fewest := math.MaxInt, math.MaxInt
	hints := []topologymanager.Hint{}
	for subset := uint64(1); subset < 1<<len(l.nodes); subset++ {
		var nodes topologymanager.Nodes
		capacity, available := 0, 0
		for i, id := range l.nodes {
			if subset&(1<<i) != 0 {
				nodes |= 1 << id
				capacity, available = capacity+all[i], available+has[i]
			}
		}
		if capacity >= d.cpus {
			smallest, fewest = min(smallest, count(nodes)), min(fewest, l.countSockets(nodes))
		}
		if nodes&must == must && available >= d.cpus {
			hints = append(hints, topologymanager.Hint{Nodes: nodes})
		}
	}
	for i := range hints {
		if o[alignBySocket] {
			hints[i].Preferred = l.countSockets(hints[i].Nodes) == fewest
		} else {
			hints[i].Preferred = count(hints[i].Nodes) == smallest
		}
	}
	return hints
}

// choose returns CPUs that satisfy the demand: as many as possible near the hint, then others. The
// error is that of takeCPUs.
func choose(l *layout, o options, d demand, near topologymanager.Hint) (cpuset.CPUSet, error) {
	usable, take := d.free.Union(d.held), o.take(l.threads)
	if near.Nodes == 0 || usable.Size() < d.cpus {
		return takeCPUs(l.machine, usable, d.cpus, take)
	}
	local := usable.Intersection(l.ofNodes(near.Nodes))
	if o[alignBySocket] {
		local = usable.Intersection(l.ofSockets(near.Nodes))
	}
	first, err := takeCPUs(l.machine, local, min(d.cpus, local.Size()), take)
	if err != nil || first.Size() == d.cpus {
		return first, err
	}
	rest, err := takeCPUs(l.machine, usable.Difference(first), d.cpus-first.Size(), take)
	return first.Union(rest), err
}
