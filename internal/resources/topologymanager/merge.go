package topologymanager

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// merging are the parameters of a merge besides the hints.
type merging struct {
	// all are the nodes of the machine.
	all Nodes
	// single accepts only preferred hints of at most one node.
	single bool
	// distance returns the sum of distances between the nodes of a set; nil: not considered (option
	// prefer-closest-numa-nodes).
	distance func(Nodes) int
}

// merge merges the hints of all providers: it returns the best of all combinations of one hint for
// each resource. A combination has the nodes that all of its hints have in common. It is preferred
// if all of them are, and all with nodes have the same ones.
//
// Only distinct outcomes are stored: their number is bounded by the number of node sets, while the
// number of combinations is the product of the numbers of hints.
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

// lists returns the hints of each resource of each provider without duplicates, in no order.
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

// outcome is the result of a combination of hints.
type outcome struct {
	// nodes are the nodes that the hints have in common.
	nodes Nodes
	// preferred: all hints are preferred, and those with nodes have the nodes wanted. wanted is 0
	// if no hint has nodes, or if the outcome is not preferred.
	preferred bool
	wanted    Nodes
}

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

// largestMinimum returns the largest of the resources' minimum numbers of nodes: a combination
// needs at least that many, and need not have more.
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

// better reports whether a is the better outcome. Preferred outcomes are better; of two preferred
// ones, the narrower. Of two others, it is the one with the number of nodes nearest to size from
// below, and above size only if there is no other.
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

func (h Hints) resources() []v1.ResourceName { return slices.Sorted(maps.Keys(h)) }
