package devicemanager

import (
	"math/bits"

	"berth/internal/resources/topologymanager"
)

// hostsLimit is the maximum number of NUMA nodes with devices of one resource for which hints are
// made: the number of hints doubles with each node. The topology manager accepts more than eight
// nodes only if configured.
const hostsLimit = 16

// supply is the input for hints: the NUMA nodes of the devices of one resource.
type supply struct {
	request             int
	all, free, reusable []topologymanager.Nodes
}

// hints returns the sets of NUMA nodes that can satisfy the request: each contains all reusable
// devices, which are used first, and enough free ones. nil means no preference, such as when no
// device has a NUMA node; an empty list means that there are not enough devices.
func (s supply) hints() []topologymanager.Hint {
	var hosts topologymanager.Nodes
	for _, n := range append(s.all[:len(s.all):len(s.all)], s.reusable...) {
		hosts |= n
	}
	if hosts == 0 {
		return nil
	}
	if len(s.free)+len(s.reusable) < s.request {
		return []topologymanager.Hint{}
	}
	if bits.OnesCount64(uint64(hosts)) > hostsLimit {
		return nil
	}
	all, free, reusable := countByNodes(s.all), countByNodes(s.free), countByNodes(s.reusable)
	total := reusable.within(hosts)
	smallest := maxNodes + 1
	var out []topologymanager.Hint
	for mask := topologymanager.Nodes(0); ; {
		mask = (mask - hosts) & hosts // the next subset, in ascending order
		if mask == 0 {
			break
		}
		if all.within(mask) >= s.request {
			smallest = min(smallest, bits.OnesCount64(uint64(mask)))
		}
		if n := reusable.within(mask); n == total && n+free.within(mask) >= s.request {
			out = append(out, topologymanager.Hint{Nodes: mask})
		}
	}
	for i := range out {
		out[i].Preferred = bits.OnesCount64(uint64(out[i].Nodes)) == smallest
	}
	// If out is nil: the request needs devices without a NUMA node, so there is no preference.
	return out
}

// counts is the number of devices by their set of NUMA nodes. It is small even for many devices.
type counts map[topologymanager.Nodes]int

func countByNodes(devices []topologymanager.Nodes) counts {
	out := counts{}
	for _, n := range devices {
		out[n]++
	}
	return out
}

// within returns the number of devices near at least one of the nodes.
func (c counts) within(mask topologymanager.Nodes) int {
	n := 0
	for nodes, count := range c {
		if nodes&mask != 0 {
			n += count
		}
	}
	return n
}
