package cpumanager

import (
	"cmp"
	"slices"
)

// stock is the number of free CPUs of a NUMA node, and how many of them can be taken.
type stock struct{ free, capacity int }

// spread returns how many of n CPUs each node provides, in multiples of group. It uses the fewest
// nodes that can provide an equal share, and distributes the remainder as evenly as their capacity
// permits. Of several choices it returns the one with the lowest standard deviation of the nodes'
// remaining free CPUs. It returns nil if there are no such nodes.
//
// It does not try all combinations. The sum of the remaining CPUs is constant, so the standard
// deviation is lowest where the sum of squares is. A node with f free CPUs that provides s of them
// changes that sum by s²-2fs, which is least if the largest shares come from the nodes with the
// most free CPUs.
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

// spreading is the input of spread, with the nodes in descending order of free CPUs.
type spreading struct {
	nodes    []stock
	fullest  []int
	n, group int
}

func (s spreading) over(k int) []int {
	equal := s.n / k / s.group * s.group
	groups := (s.n - k*equal) / s.group // remaining groups; fewer than k
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
