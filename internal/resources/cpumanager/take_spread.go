package cpumanager

import (
	"cmp"
	"slices"
)

// stock is what a NUMA node has: CPUs that are free, and how many of them can be taken.
type stock struct{ free, capacity int }

// spread returns how many of n CPUs each node gives, in groups of CPUs: the fewest nodes that can
// give an equal number, and what is left over as evenly as they have room. Of several choices it is
// the one that leaves the nodes most alike: with the lowest standard deviation of the numbers of
// CPUs that are then free. Nil: there are no such nodes.
//
// It need not try all combinations. As many CPUs are left in sum whatever is chosen, so the
// standard deviation is lowest where the sum of squares is. A node with f free CPUs that gives s of
// them changes that by s²-2fs, which is least where the largest shares come from the fullest nodes.
func spread(nodes []stock, n, group int) []int {
	if n%group != 0 {
		return nil
	}
	s := spreading{nodes: nodes, n: n, group: group}
	for i := range nodes {
		s.fullest = append(s.fullest, i)
	}
	slices.SortStableFunc(s.fullest, func(a, b int) int { return cmp.Compare(nodes[b].free, nodes[a].free) })
	for k := 1; k <= min(len(nodes), n/group); k++ {
		if shares := s.over(k); shares != nil {
			return shares
		}
	}
	return nil
}

// spreading is what spread is asked, and the nodes with the most free CPUs first.
type spreading struct {
	nodes    []stock
	fullest  []int
	n, group int
}

// over spreads over k nodes.
func (s spreading) over(k int) []int {
	equal := s.n / k / s.group * s.group
	groups := (s.n - k*equal) / s.group // that are left over; fewer than k
	shares := make([]int, len(s.nodes))
	chosen := 0
	for share := equal + s.group; groups > 0; share += s.group {
		before := groups
		for _, i := range s.fullest {
			if groups > 0 && s.nodes[i].capacity >= share {
				if shares[i] == 0 {
					chosen++
				}
				shares[i] = share
				groups--
			}
		}
		if groups == before {
			return nil
		}
	}
	for _, i := range s.fullest {
		if chosen < k && shares[i] == 0 && s.nodes[i].capacity >= equal {
			shares[i] = equal
			chosen++
		}
	}
	if chosen < k {
		return nil
	}
	return shares
}
