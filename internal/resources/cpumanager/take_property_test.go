package cpumanager

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/utils/cpuset"

	"berth/internal/resources/machine"
	"berth/internal/resources/machine/machinetest"
)

// anyMachine is one of whatever shape, small enough to try everything on it.
func anyMachine(r *rand.Rand) machine.Machine {
	s := machinetest.Shape{
		Sockets: 1 + r.IntN(4), Cores: 1 + r.IntN(6), Threads: 1 + r.IntN(4),
		Numbers:    machinetest.Numbering(r.IntN(3)),
		SocketStep: 1 + r.IntN(3), NodeStep: 1 + r.IntN(8), CacheStep: 1 + r.IntN(3),
		MemoryNodes: r.IntN(2),
	}
	s.Nodes, s.Caches = 1+r.IntN(min(s.Cores, 3)), 1+r.IntN(s.Cores)
	if s.Nodes == 1 && s.Sockets%2 == 0 {
		s.SocketsPerNode = 1 + r.IntN(2)
	}
	all := s.Sockets * s.Cores * s.Threads
	if r.IntN(3) == 0 {
		for range r.IntN(all) {
			s.Offline = append(s.Offline, r.IntN(all))
		}
	}
	return s.Machine()
}

// anyFree is what is free of a machine: all, or what is left when cores, nodes and single CPUs were
// taken.
func anyFree(r *rand.Rand, m machine.Machine) cpuset.CPUSet {
	cores, nodes, cpus := r.IntN(100), r.IntN(60), r.IntN(60)
	usedCores, usedNodes := map[int]bool{}, map[int]bool{}
	for _, id := range m.Cores() {
		usedCores[id] = r.IntN(100) < cores
	}
	for _, id := range m.CPUNodes() {
		usedNodes[id] = r.IntN(100) < nodes
	}
	free := []int{5000} // which the machine does not have
	for _, c := range m.CPUs {
		if !usedCores[c.Core] && !usedNodes[c.Node] && r.IntN(100) >= cpus {
			free = append(free, c.ID)
		}
	}
	return cpuset.New(free...)
}

func TestTakeAnywhere(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		m := anyMachine(r)
		free := anyFree(r, m)
		have := free.Intersection(m.Online())
		n := 1 + r.IntN(len(m.CPUs)+1)
		o := everyOption[r.IntN(len(everyOption))]
		got, err := takeCPUs(&m, free, n, o)
		about := func() string {
			return fmt.Sprintf("%v %+v\n%d of %q with %+v: %q", m, m.CPUs, n, have, o, got)
		}
		if n > have.Size() {
			if err == nil {
				t.Fatalf("%s, but there are not so many", about())
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", about(), err)
		}
		if got.Size() != n || !got.IsSubsetOf(have) {
			t.Fatalf("%s: not so many, or such that are not free", about())
		}
		if o == (TakeOptions{}) {
			checkWhole(t, about, m.CPUs, have, got)
		}
		if o.GroupSize == 2 && n%2 == 0 {
			checkUnshared(t, about, m, have, got)
		}
		shuffled := machine.Machine{CPUs: slices.Clone(m.CPUs), Nodes: m.Nodes}
		r.Shuffle(len(shuffled.CPUs), func(i, j int) {
			shuffled.CPUs[i], shuffled.CPUs[j] = shuffled.CPUs[j], shuffled.CPUs[i]
		})
		before := slices.Clone(shuffled.CPUs)
		again, err := takeCPUs(&shuffled, free, n, o)
		if err != nil || !again.Equals(got) {
			t.Fatalf("%s, but with CPUs in another order %q, %v", about(), again, err)
		}
		if !slices.Equal(before, shuffled.CPUs) {
			t.Fatalf("%s: the order of the machine's CPUs is not what it was", about())
		}
	}
}

// checkWhole checks what takeCPUs says of parts that are wholly free.
func checkWhole(t *testing.T, about func() string, cpus []machine.CPU, free, got cpuset.CPUSet) {
	t.Helper()
	larger := func(c machine.CPU) int { return c.Node }
	m := machine.Machine{CPUs: cpus}
	if len(m.Sockets()) < len(m.CPUNodes()) {
		larger = func(c machine.CPU) int { return c.Socket }
	}
	for kind, of := range map[string]func(machine.CPU) int{
		"sockets or nodes": larger, "cores": func(c machine.CPU) int { return c.Core },
	} {
		parts := map[int][]int{}
		for _, c := range cpus {
			parts[of(c)] = append(parts[of(c)], c.ID)
		}
		outside, split, smallest := got.Size(), 0, math.MaxInt
		for _, ids := range parts {
			part := cpuset.New(ids...)
			switch {
			case !part.IsSubsetOf(free):
			case part.IsSubsetOf(got):
				outside -= part.Size()
			default:
				smallest = min(smallest, part.Size())
				if !part.Intersection(got).IsEmpty() {
					split++
				}
			}
		}
		if outside >= smallest {
			t.Fatalf("%s: %d CPUs are outside of %s that were wholly free, and one of %d was not taken", about(), outside, kind, smallest)
		}
		if kind == "cores" && split > 1 {
			t.Fatalf("%s: %d cores that were wholly free are split", about(), split)
		}
	}
}

// checkUnshared checks that cores are taken whole if there are so many.
func checkUnshared(t *testing.T, about func() string, m machine.Machine, free, got cpuset.CPUSet) {
	t.Helper()
	enough, shared := 0, false
	for _, core := range m.Cores() {
		threads := cpuset.New()
		for _, c := range m.CPUs {
			if c.Core == core {
				threads = threads.Union(cpuset.New(c.ID))
			}
		}
		if threads.Size() == 2 && threads.IsSubsetOf(free) {
			enough += 2
		}
		taken := threads.Intersection(got)
		shared = shared || !taken.IsEmpty() && !taken.Equals(threads)
	}
	if got.Size() <= enough && shared {
		t.Fatalf("%s: cores are shared", about())
	}
}

// TestTakeSpreadBest holds the spread over nodes against all combinations of nodes, and the
// deviation as it is defined.
func TestTakeSpreadBest(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	spreads := 0
	for range 5000 {
		group := 1 + r.IntN(3)
		nodes := make([]stock, 1+r.IntN(6))
		sum := 0
		for i := range nodes {
			free := r.IntN(14)
			nodes[i] = stock{free: free, capacity: (free - r.IntN(min(free, 2)+1)) / group * group}
			sum += nodes[i].capacity
		}
		n := (1 + r.IntN(sum/group+2)) * group
		got, want := spread(nodes, n, group), bestSpread(nodes, n, group)
		if !slices.Equal(got, want) {
			t.Fatalf("%d in groups of %d over %+v: %v (%.3f), but %v (%.3f) is better",
				n, group, nodes, got, deviation(nodes, got), want, deviation(nodes, want))
		}
		if got != nil {
			spreads++
		}
	}
	if spreads < 1250 {
		t.Errorf("only %d of 5000 requests could be spread", spreads)
	}
}

// bestSpread tries all sets of nodes, from the smallest, and within them all sets of those that
// give a group more. The most even shares are best, and of these those with the lowest deviation.
func bestSpread(nodes []stock, n, group int) []int {
	for k := 1; k <= min(len(nodes), n/group); k++ {
		equal := n / k / group * group
		over := (n - k*equal) / group
		var best []int
		for _, set := range subsets(len(nodes), k) {
			shares := make([]int, len(nodes))
			able := true
			for _, i := range set {
				shares[i] = equal
				able = able && nodes[i].capacity >= equal
			}
			if !able {
				continue
			}
			for _, with := range deal(nodes, set, shares, dealing{over, group}) {
				uneven := slices.Compare(falling(with), falling(best))
				if best == nil || uneven < 0 || uneven == 0 && deviation(nodes, with) < deviation(nodes, best) {
					best = with
				}
			}
		}
		if best != nil {
			return best
		}
	}
	return nil
}

func falling(shares []int) []int {
	return slices.SortedFunc(slices.Values(shares), func(a, b int) int { return b - a })
}

// dealing is how many groups of CPUs are still to be dealt.
type dealing struct{ over, group int }

// deal returns all ways to deal groups to nodes of a set that have room: in rounds of one group for
// each, so that a node gets a second one only if no other has room for its first.
func deal(nodes []stock, set, shares []int, d dealing) [][]int {
	if d.over == 0 {
		return [][]int{shares}
	}
	var able []int
	for _, i := range set {
		if nodes[i].capacity >= shares[i]+d.group {
			able = append(able, i)
		}
	}
	if len(able) == 0 {
		return nil
	}
	give := min(d.over, len(able))
	var ways [][]int
	for _, chosen := range subsets(len(able), give) {
		with := slices.Clone(shares)
		for _, j := range chosen {
			with[able[j]] += d.group
		}
		ways = append(ways, deal(nodes, able, with, dealing{d.over - give, d.group})...)
	}
	return ways
}

// subsets returns all sets of k of the numbers below n, in their order.
func subsets(n, k int) [][]int {
	var sets [][]int
	for bits := range 1 << n {
		var set []int
		for i := range n {
			if bits&(1<<i) != 0 {
				set = append(set, i)
			}
		}
		if len(set) == k {
			sets = append(sets, set)
		}
	}
	slices.SortFunc(sets, slices.Compare)
	return sets
}

// deviation is the standard deviation of what is left free, to three decimals.
func deviation(nodes []stock, shares []int) float64 {
	if shares == nil {
		return math.Inf(1)
	}
	sum := 0.0
	for i, n := range nodes {
		sum += float64(n.free - shares[i])
	}
	mean, squares := sum/float64(len(nodes)), 0.0
	for i, n := range nodes {
		squares += math.Pow(float64(n.free-shares[i])-mean, 2)
	}
	return math.Round(1000*math.Sqrt(squares/float64(len(nodes)))) / 1000
}
