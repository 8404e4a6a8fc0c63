package topologymanager

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// merging is what the merge of hints depends on beside them.
type merging struct {
	// all are the nodes of the machine.
	all Nodes
	// single keeps only what lies on one node at most, and is preferred.
	single bool
	// distance returns how far the nodes of a set lie from each other, all together; nil: it does
	// not matter (option prefer-closest-numa-nodes).
	distance func(Nodes) int
}

// merge returns the hint that follows from those of all providers: the best of all combinations of
// one hint for each resource. A combination lies on the nodes that all of its hints have in common,
// and is preferred if all are, and none of them wants other nodes than another.
//
// Only the different outcomes of combinations are kept: there are not more than sets of nodes,
// while there are as many combinations as the numbers of hints multiplied.
func (m merging) merge(providers []Hints) Hint {
	lists := m.lists(providers)
	outcomes := map[outcome]bool{{nodes: m.all, preferred: true}: true}
	for _, list := range lists {
		next := map[outcome]bool{}
		for o := range outcomes {
			for _, h := range list {
				if n := o.with(h); n.nodes != 0 {
					next[n] = true
				}
			}
		}
		outcomes = next
	}
	best := Hint{Nodes: m.all}
	size, found := largestMinimum(lists), false
	for o := range outcomes {
		if h := (Hint{o.nodes, o.preferred}); !found || m.better(h, best, size) {
			best, found = h, true
		}
	}
	if m.single && best.Nodes == m.all {
		best.Nodes = 0
	}
	return best
}

// lists returns the hints of each resource of each provider, in no order, none twice.
func (m merging) lists(providers []Hints) [][]Hint {
	var lists [][]Hint
	for _, hints := range providers {
		if len(hints) == 0 {
			hints = Hints{"": nil}
		}
		for _, list := range hints {
			switch {
			case list == nil:
				list = []Hint{{Preferred: true}}
			case len(list) == 0:
				list = []Hint{{}}
			}
			different := map[Hint]bool{}
			for _, h := range list {
				if !m.single || h.Preferred && h.Nodes.Count() <= 1 {
					different[h] = true
				}
			}
			lists = append(lists, slices.Collect(maps.Keys(different)))
		}
	}
	return lists
}

// outcome is what a combination of hints comes to.
type outcome struct {
	// nodes are those that its hints have in common.
	nodes Nodes
	// preferred: all hints are, and those that have nodes have these; wanted are they, 0 as long as
	// no hint has nodes, and 0 if it is not preferred.
	preferred bool
	wanted    Nodes
}

// with returns the outcome with one more hint.
func (o outcome) with(h Hint) outcome {
	o.preferred = o.preferred && h.Preferred
	if h.Nodes != 0 {
		o.nodes &= h.Nodes
		o.preferred = o.preferred && (o.wanted == 0 || o.wanted == h.Nodes)
		o.wanted = h.Nodes
	}
	if !o.preferred {
		o.wanted = 0
	}
	return o
}

// largestMinimum returns how many nodes the resource needs that needs most: less can not be had of
// all, and more need not be.
func largestMinimum(lists [][]Hint) int {
	largest := 0
	for _, list := range lists {
		least := 0
		for _, h := range list {
			if n := h.Nodes.Count(); n > 0 && (least == 0 || n < least) {
				least = n
			}
		}
		largest = max(largest, least)
	}
	return largest
}

// better reports whether a is the better outcome. What is preferred is better than what is not; of
// what is preferred, the narrower; of what is not, that whose number of nodes is nearest to size
// from below, and above it only if nothing else is left.
func (m merging) better(a, b Hint, size int) bool {
	if a.Preferred != b.Preferred {
		return a.Preferred
	}
	x, y := a.Nodes.Count(), b.Nodes.Count()
	if !a.Preferred && x != y {
		if x <= size && y <= size {
			return x > y
		}
		return x < y
	}
	if x == y && m.distance != nil {
		if i, j := m.distance(a.Nodes), m.distance(b.Nodes); i != j {
			return i < j
		}
	}
	return a.Nodes.Narrower(b.Nodes)
}

// resources returns the names of the resources, sorted.
func (h Hints) resources() []v1.ResourceName { return slices.Sorted(maps.Keys(h)) }
