package devicemanager

import (
	"math/bits"

	"berth/internal/resources/topologymanager"
)

// hostsLimit is up to how many NUMA nodes with devices of one resource hints are made: their number
// doubles with each. A topology manager takes more than eight only when it is told to.
const hostsLimit = 16

// supply is what hints are made from: the NUMA nodes of devices of one resource.
type supply struct {
	request             int
	all, free, reusable []topologymanager.Nodes
}

// hints returns the sets of NUMA nodes that can hold the request: all that is reusable, which is
// taken first, lies there, and with it enough that is free. nil is no preference, as when no
// device is known to lie near a node; an empty list says that there is not enough.
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
		mask = (mask - hosts) & hosts // the next of the subsets, in ascending order
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
	// None: it takes devices that lie near no node, and these could be anywhere.
	return out
}

// counts are numbers of devices by the nodes near which they lie: few, however many devices.
type counts map[topologymanager.Nodes]int

func countByNodes(devices []topologymanager.Nodes) counts {
	out := counts{}
	for _, n := range devices {
		out[n]++
	}
	return out
}

// within returns how many devices lie near one of the nodes at least.
func (c counts) within(mask topologymanager.Nodes) int {
	n := 0
	for nodes, count := range c {
		if nodes&mask != 0 {
			n += count
		}
	}
	return n
}
