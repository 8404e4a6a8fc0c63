package topologymanager

import (
	"iter"
	"math/bits"
	"strconv"
	"strings"
)

// MaxNodes is the capacity of a Nodes: IDs are from 0 to 63.
const MaxNodes = 64

// NodesOf returns the set of the nodes with these IDs. Negative IDs and IDs of at least MaxNodes
// are ignored.
func NodesOf(ids ...int) Nodes {
	var n Nodes
	for _, id := range ids {
		if id >= 0 {
			n |= 1 << id
		}
	}
	return n
}

// Count returns the number of nodes in the set.
func (n Nodes) Count() int { return bits.OnesCount64(uint64(n)) }

// Has reports whether the node is in the set.
func (n Nodes) Has(id int) bool { return n&NodesOf(id) != 0 }

// Contains reports whether every node of other is in the set.
func (n Nodes) Contains(other Nodes) bool { return n&other == other }

// List returns the IDs, ascending.
func (n Nodes) List() []int {
	ids := make([]int, 0, n.Count())
	for rest := uint64(n); rest != 0; rest &= rest - 1 {
		ids = append(ids, bits.TrailingZeros64(rest))
	}
	return ids
}

// Narrower reports whether the set has fewer nodes than other or, if equally many, the lower mask.
func (n Nodes) Narrower(other Nodes) bool {
	if a, b := n.Count(), other.Count(); a != b {
		return a < b
	}
	return n < other
}

// String returns the set in braces: "{0,2}".
func (n Nodes) String() string {
	var ids []string
	for _, id := range n.List() {
		ids = append(ids, strconv.Itoa(id))
	}
	return "{" + strings.Join(ids, ",") + "}"
}

// SubsetsFrom yields the subsets of n with at least size nodes, and at least one, narrower ones
// first.
func (n Nodes) SubsetsFrom(size int) iter.Seq[Nodes] {
	return func(yield func(Nodes) bool) {
		ids := n.List()
		last := uint64(1)<<len(ids) - 1 // all; correct for 64 nodes, too, where the shift gives 0
		for size := max(size, 1); size <= len(ids); size++ {
			for mask := last >> (len(ids) - size); mask <= last; {
				if !yield(chosen(ids, mask)) {
					return
				}
				// The next higher number with as many bits: carry the lowest run of ones up by one,
				// and move the rest of the run to the bottom.
				low := mask & -mask
				up := mask + low
				if up == 0 {
					break
				}
				mask = up | (mask^up)/low>>2
			}
		}
	}
}

// chosen returns the IDs whose index is set in the mask.
func chosen(ids []int, mask uint64) Nodes {
	var n Nodes
	for ; mask != 0; mask &= mask - 1 {
		n |= 1 << ids[bits.TrailingZeros64(mask)]
	}
	return n
}
