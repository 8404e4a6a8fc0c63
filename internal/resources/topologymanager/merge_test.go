package topologymanager

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"berth/internal/resources/machine"
)

func h(preferred string, ids ...int) Hint {
	return Hint{Nodes: NodesOf(ids...), Preferred: preferred == "yes"}
}

// of returns the hints of one resource.
func of(list ...Hint) Hints { return Hints{"r": append([]Hint{}, list...)} }

// machineOf returns a machine of n nodes in a row: the farther their IDs, the greater the distance.
func machineOf(n int) *machine.Machine {
	m := &machine.Machine{}
	for i := range n {
		node := machine.Node{ID: i, Distances: map[int]int{}}
		for j := range n {
			node.Distances[j] = 10 + 5*max(i-j, j-i)
		}
		m.Nodes = append(m.Nodes, node)
	}
	return m
}

func mergingOf(t *testing.T, n int, policy string, options map[string]string) merging {
	t.Helper()
	m, err := newMerging(&Config{Policy: policy, Scope: ContainerScope, Options: options, Machine: machineOf(n)})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMerge(t *testing.T) {
	closest := map[string]string{preferClosest: "true"}
	for _, tt := range []struct {
		name      string
		nodes     int
		policy    string
		options   map[string]string
		providers []Hints
		want      Hint
	}{
		{name: "one node, nobody cares", nodes: 1, policy: Restricted, providers: []Hints{{}, nil}, want: h("yes", 0)},
		{name: "one node, single: anywhere", nodes: 1, policy: SingleNUMANode, providers: []Hints{of(h("yes", 0))}, want: h("yes")},
		{name: "one node, single, impossible", nodes: 1, policy: SingleNUMANode, providers: []Hints{of()}, want: h("no")},
		{name: "one node, impossible", nodes: 1, policy: Restricted, providers: []Hints{of()}, want: h("no", 0)},
		{name: "no provider", nodes: 2, policy: BestEffort, want: h("yes", 0, 1)},
		{name: "no preference of a resource", nodes: 2, policy: BestEffort, providers: []Hints{{"r": nil}}, want: h("yes", 0, 1)},
		{name: "one provider, lowest node", nodes: 2, policy: BestEffort, providers: []Hints{of(h("yes", 1), h("yes", 0), h("no", 0, 1)), {}}, want: h("yes", 0)},
		{name: "two agree on one", nodes: 2, policy: Restricted, providers: []Hints{of(h("yes", 0), h("yes", 1), h("no", 0, 1)), of(h("yes", 1), h("no", 0, 1))}, want: h("yes", 1)},
		{
			name: "two do not agree", nodes: 2, policy: Restricted,
			providers: []Hints{of(h("yes", 0), h("no", 0, 1)), of(h("yes", 1), h("no", 0, 1))}, want: h("no", 0),
		},
		{name: "nothing in common", nodes: 2, policy: BestEffort, providers: []Hints{of(h("yes", 0)), of(h("yes", 1))}, want: h("no", 0, 1)},
		{name: "nothing in common, single", nodes: 2, policy: SingleNUMANode, providers: []Hints{of(h("yes", 0)), of(h("yes", 1))}, want: h("no")},
		{name: "impossible beside a preference", nodes: 2, policy: BestEffort, providers: []Hints{of(h("yes", 0)), of()}, want: h("no", 0)},
		{name: "preferred, but within another", nodes: 2, policy: Restricted, providers: []Hints{of(h("yes", 0)), of(h("yes", 0, 1))}, want: h("no", 0)},
		{name: "two nodes preferred by both", nodes: 4, policy: Restricted, providers: []Hints{of(h("yes", 1, 2), h("yes", 0, 3)), of(h("yes", 0, 3))}, want: h("yes", 0, 3)},
		{name: "two nodes, single", nodes: 4, policy: SingleNUMANode, providers: []Hints{of(h("yes", 1, 2), h("yes", 0, 3))}, want: h("no")},
		{name: "narrower of the preferred", nodes: 4, policy: BestEffort, providers: []Hints{of(h("yes", 0, 1)), of(h("yes", 0, 1), h("yes", 2, 3))}, want: h("yes", 0, 1)},
		{name: "lower of as many", nodes: 4, policy: BestEffort, providers: []Hints{of(h("yes", 1, 2), h("yes", 0, 3))}, want: h("yes", 1, 2)},
		{name: "farther apart, but lower", nodes: 4, policy: BestEffort, providers: []Hints{of(h("yes", 0, 2), h("yes", 2, 3))}, want: h("yes", 0, 2)},
		{name: "closer", nodes: 4, policy: BestEffort, options: closest, providers: []Hints{of(h("yes", 0, 2), h("yes", 2, 3))}, want: h("yes", 2, 3)},
		{name: "closer of what is not preferred", nodes: 4, policy: BestEffort, options: closest, providers: []Hints{of(h("no", 0, 2), h("no", 2, 3))}, want: h("no", 2, 3)},
		{name: "as close: lower", nodes: 4, policy: BestEffort, options: closest, providers: []Hints{of(h("yes", 2, 3), h("yes", 1, 2))}, want: h("yes", 1, 2)},
		{
			name: "not preferred: as wide as the widest minimum", nodes: 8, policy: BestEffort,
			providers: []Hints{of(h("no", 0), h("no", 0, 1), h("no", 0, 1, 2)), of(h("no", 0, 1), h("no", 0, 1, 2))}, want: h("no", 0, 1),
		},
		{
			name: "not preferred: nothing but what is wider", nodes: 8, policy: BestEffort,
			providers: []Hints{of(h("no", 4), h("no", 0, 1, 2)), of(h("no", 0), h("no", 0, 1, 2, 3))}, want: h("no", 0),
		},
		{
			name: "two resources of one provider", nodes: 2, policy: SingleNUMANode,
			providers: []Hints{{"a": {h("yes", 0), h("yes", 1)}, "b": {h("yes", 1)}}}, want: h("yes", 1),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := mergingOf(t, tt.nodes, tt.policy, tt.options)
			if got := m.merge(tt.providers); got != tt.want {
				t.Errorf("%s\nwant %v", describe(tt.providers, got), tt.want)
			}
		})
	}
}

// naive is the merge as its description says: every combination, one after the other.
func naive(m merging, providers []Hints) Hint {
	var lists [][]Hint
	for _, p := range providers {
		if len(p) == 0 {
			lists = append(lists, []Hint{{Preferred: true}})
		}
		for _, list := range p {
			if list == nil {
				list = []Hint{{Preferred: true}}
			} else if len(list) == 0 {
				list = []Hint{{Preferred: false}}
			}
			lists = append(lists, list)
		}
	}
	if m.single {
		for i := range lists {
			lists[i] = slices.DeleteFunc(slices.Clone(lists[i]), func(h Hint) bool { return !h.Preferred || h.Nodes.Count() > 1 })
		}
	}
	size := 0
	for _, list := range lists {
		least := MaxNodes + 1
		for _, h := range list {
			if h.Nodes != 0 {
				least = min(least, h.Nodes.Count())
			}
		}
		if least <= MaxNodes {
			size = max(size, least)
		}
	}
	var all []Hint
	var combine func(i int, chosen []Hint)
	combine = func(i int, chosen []Hint) {
		if i < len(lists) {
			for _, h := range lists[i] {
				combine(i+1, append(chosen, h))
			}
			return
		}
		out, wanted := Hint{Nodes: m.all, Preferred: true}, map[Nodes]bool{}
		for _, h := range chosen {
			if !h.Preferred {
				out.Preferred = false
			}
			if h.Nodes != 0 {
				wanted[h.Nodes] = true
				out.Nodes &= h.Nodes
			}
		}
		if len(wanted) > 1 {
			out.Preferred = false
		}
		if out.Nodes != 0 {
			all = append(all, out)
		}
	}
	combine(0, nil)
	best := Hint{Nodes: m.all}
	if len(all) > 0 {
		best = slices.MinFunc(all, func(a, b Hint) int { return slices.Compare(naiveRank(m, a, size), naiveRank(m, b, size)) })
	}
	if m.single && best.Nodes == m.all {
		best.Nodes = 0
	}
	return best
}

// naiveRank is lower for a better outcome.
func naiveRank(m merging, h Hint, size int) []int {
	count, distance := h.Nodes.Count(), 0
	if m.distance != nil {
		distance = m.distance(h.Nodes)
	}
	var rank []int
	switch {
	case h.Preferred:
		rank = []int{0, 0, count}
	case count > size:
		rank = []int{1, 1, count}
	default:
		rank = []int{1, 0, size - count}
	}
	return append(rank, distance, int(h.Nodes))
}

func TestMergeIsThatOfAllCombinations(t *testing.T) {
	preferred, random := 0, rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 4, 8} {
		for _, policy := range []string{BestEffort, Restricted, SingleNUMANode} {
			for _, closest := range []string{"true", "false"} {
				m := mergingOf(t, n, policy, map[string]string{preferClosest: closest})
				for range 1500 {
					providers := randomHints(random, m.all)
					got, want := m.merge(providers), naive(m, providers)
					if got != want {
						t.Fatalf("%d nodes, %s: %s\nwant %v", n, policy, describe(providers, got), want)
					}
					if want.Preferred && want.Nodes != m.all && want.Nodes != 0 {
						preferred++
					}
				}
			}
		}
	}
	if preferred < 500 {
		t.Errorf("%d of the merges were preferred: the hints are too random to test much", preferred)
	}
}

func randomHints(random *rand.Rand, all Nodes) []Hints {
	var providers []Hints
	for range random.IntN(4) {
		hints := Hints{}
		for i := range random.IntN(3) {
			name := v1.ResourceName(fmt.Sprint("r", i))
			switch random.IntN(8) {
			case 0:
				hints[name] = nil
			case 1:
				hints[name] = []Hint{}
			default:
				for range 1 + random.IntN(5) {
					nodes := Nodes(random.Uint64()) & all
					if random.IntN(2) == 0 {
						nodes &= Nodes(random.Uint64())
					}
					hints[name] = append(hints[name], Hint{Nodes: nodes, Preferred: random.IntN(3) > 0})
				}
			}
		}
		providers = append(providers, hints)
	}
	return providers
}

// TestMergeOfManyHints merges what three providers say that could take any nodes: as combinations,
// they would be 255^6.
func TestMergeOfManyHints(t *testing.T) {
	m := mergingOf(t, 8, Restricted, nil)
	var list []Hint
	for n := range m.all.SubsetsFrom(1) {
		list = append(list, Hint{Nodes: n, Preferred: n.Count() == 2})
	}
	provider := Hints{"a": list, "b": list}
	if got, want := m.merge([]Hints{provider, provider, provider}), h("yes", 0, 1); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestNodes(t *testing.T) {
	n := NodesOf(0, 2, 63, 64, -1)
	if got := n.String(); got != "{0,2,63}" || n.Count() != 3 || !n.Has(63) || n.Has(1) || n.Has(64) || !slices.Equal(n.List(), []int{0, 2, 63}) {
		t.Errorf("%s with %d nodes, %v", got, n.Count(), n.List())
	}
	if !NodesOf(1).Narrower(NodesOf(0, 2)) || !NodesOf(0).Narrower(NodesOf(1)) || NodesOf(1).Narrower(NodesOf(1)) || NodesOf(0, 1).Narrower(NodesOf(2)) {
		t.Error("Narrower is not by number, then by value")
	}
	var got []string
	for s := range NodesOf(1, 3, 4).SubsetsFrom(1) {
		got = append(got, s.String())
	}
	if want := []string{"{1}", "{3}", "{4}", "{1,3}", "{1,4}", "{3,4}", "{1,3,4}"}; !slices.Equal(got, want) {
		t.Errorf("subsets are %v, want %v", got, want)
	}
	got = nil
	for s := range NodesOf(1, 3, 4).SubsetsFrom(2) {
		got = append(got, s.String())
	}
	if want := []string{"{1,3}", "{1,4}", "{3,4}", "{1,3,4}"}; !slices.Equal(got, want) {
		t.Errorf("subsets from two on are %v, want %v", got, want)
	}
	count := 0
	for s := range Nodes(1<<MaxNodes - 1).SubsetsFrom(1) {
		if s.Count() > 2 {
			break
		}
		count++
	}
	if count != 64+64*63/2 {
		t.Errorf("%d subsets of one and two of 64 nodes", count)
	}
	for range Nodes(0).SubsetsFrom(1) {
		t.Error("the empty set has a subset that is not empty")
	}
}
